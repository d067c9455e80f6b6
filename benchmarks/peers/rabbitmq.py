"""RabbitMQ streams (Debian's `rabbitmq-server`, plugin rabbitmq_stream): publishes that are confirmed, and a subscription.

Knows: its stream protocol as far as this needs it, and how a broker is started that shares nothing with another on the machine:
folder, cookie, ports and the name server (epmd) are its own. Streams are never synced: the files are left to the kernel.

    request     u32 size │ u16 key │ u16 version │ u32 correlation id │ …
    answer      the same with key | 0x8000, then u16 code (1: well) │ …
    Publish     u32 size │ u16 2 │ u16 1 │ u8 publisher │ u32 count │ entries of u64 number │ u32 size │ bytes
                or, many records in one entry:            u64 number │ u8 0x80 │ u16 records │ u32 size │ u32 size │ …
    Confirm     u32 size │ u16 3 │ u16 1 │ u8 publisher │ u32 count │ numbers of u64
    Deliver     u32 size │ u16 8 │ u16 1 │ u8 subscription │ u8 magic │ u8 type │ u16 entries │ u32 records │ …
"""

import shutil
import struct
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from benchmarks.load import Frames, Line
from benchmarks.peers.process import PeerProcess, free_port

CHUNK: Final = 1000
_SCRIPT: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Debian's own: the one in the path becomes another user, whose folders it takes."""

_PUBLISHER, _PUBLISH, _CONFIRM, _REFUSED = 1, 2, 3, 4
_SUBSCRIBE, _DELIVER, _CREATE, _DELETE = 7, 8, 13, 14
_PROPERTIES, _MECHANISMS, _AUTHENTICATE, _TUNE, _OPEN = 17, 18, 19, 20, 21
_ANSWER: Final = 0x8000
_WELL: Final = 1
_FIRST: Final = 1
_CREDIT_MAX: Final = 0xFFFF
_LIMITS: Final = struct.Struct(">HHII")


class Rabbit(PeerProcess):
    name = "rabbitmq"

    def __init__(self) -> None:
        super().__init__()
        self._names_port = free_port()
        self._names: subprocess.Popen[bytes] | None = None
        self._streams = 0
        conf = f"listeners.tcp.1 = 127.0.0.1:{free_port()}\nstream.listeners.tcp.1 = 127.0.0.1:{self.port}\n"
        (self.folder / "rabbitmq.conf").write_text(conf, encoding="utf-8")
        (self.folder / "enabled_plugins").write_text("[rabbitmq_stream].\n", encoding="utf-8")

    def command(self) -> list[str]:
        settings = {
            "HOME": self.folder,
            "ERL_EPMD_PORT": self._names_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": self.folder / "none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "enabled_plugins",
            "RABBITMQ_MNESIA_BASE": self.folder / "data",
            "RABBITMQ_LOG_BASE": self.folder / "log",
            "RABBITMQ_PID_FILE": self.folder / "pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the broker: its id is the one that is ended
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), _SCRIPT]

    def __enter__(self) -> Self:
        epmd = shutil.which("epmd")
        assert epmd is not None, "Erlang has it, which the broker needs"
        self._names = subprocess.Popen(
            [epmd, "-port", str(self._names_port), "-address", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return super().__enter__()
        except BaseException:
            self._end_names()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._end_names()

    def _end_names(self) -> None:
        assert self._names is not None
        self._names.kill()
        self._names.wait()

    def connect(self) -> Line:
        line = Line(self.address)
        _asked(line, request(_PROPERTIES, struct.pack(">I", 0)))
        _asked(line, request(_MECHANISMS))
        user = b"\0guest\0guest"
        line.socket.sendall(request(_AUTHENTICATE, text(b"PLAIN") + struct.pack(">I", len(user)) + user))
        for key in (_AUTHENTICATE | _ANSWER, _TUNE):
            frame = _frame(line)
            if int.from_bytes(frame[:2]) != key or (key != _TUNE and int.from_bytes(frame[8:10]) != _WELL):
                raise RuntimeError(f"{self.name} does not let us in: {frame.hex()}")
        line.socket.sendall(_framed(_LIMITS.pack(_TUNE, 1, 0, 0)))  # frames of any size, no heartbeats
        _asked(line, request(_OPEN, text(b"/")))
        return line

    def create_stream(self, line: Line) -> bytes:
        self._streams += 1
        name = b"s%d" % self._streams
        _asked(line, request(_CREATE, text(name) + struct.pack(">I", 0)))
        return name

    def delete_stream(self, name: bytes) -> None:
        line = self.connect()
        _asked(line, request(_DELETE, text(name)))
        line.close()

    # -- what is measured ----------------------------------------------------------------------------------------------

    def produce(self, value: bytes, chunks: int, *, window: int, per_entry: int = 1) -> tuple[float, bytes]:
        """Records/s until the last is confirmed, and the stream they are in."""
        line = self.connect()
        stream = self.create_stream(line)
        _asked(line, request(_PUBLISHER, b"\0" + text(b"") + text(stream)))
        work = Produce(value, per_entry)
        taken = line.drive(work.chunks(chunks), work.per_chunk, StreamFrames(), window=window)
        line.close()
        return chunks * CHUNK / taken, stream

    def consume(self, stream: bytes, records: int) -> float:
        """Records/s that are delivered to who subscribes at the first one and never lets the broker wait for credit."""
        line = self.connect()
        wanted = b"\0" + text(stream) + struct.pack(">HHI", _FIRST, _CREDIT_MAX, 0)
        taken = line.drive([request(_SUBSCRIBE, wanted)], records, StreamFrames(), window=1)
        line.close()
        return records / taken


def text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def request(key: int, body: bytes = b"") -> bytes:
    return _framed(struct.pack(">HHI", key, 1, 0) + body)


def _framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _frame(line: Line) -> bytes:
    """The next frame, alone."""
    size = int.from_bytes(_exactly(line, 4))
    return _exactly(line, size)


def _exactly(line: Line, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = line.socket.recv(size - len(found))
        if not more:
            raise ConnectionError("closed before the answer")
        found += more
    return found


def _asked(line: Line, frame: bytes) -> None:
    answer = line.ask(frame, Frames())
    code = int.from_bytes(answer[12:14])
    if code != _WELL:
        raise RuntimeError(f"rabbitmq answered {code} to request {int.from_bytes(frame[4:6])}")


class Produce:
    """Publish frames of a thousand records, each with its number: every entry is confirmed by it."""

    def __init__(self, value: bytes, per_entry: int = 1) -> None:
        self._entry = struct.pack(">I", len(value)) + value if per_entry == 1 else _many(value, per_entry)
        self.per_chunk = CHUNK // per_entry
        self._numbers = 0

    def chunks(self, count: int) -> Sequence[bytes]:
        return [self._chunk() for _ in range(count)]

    def _chunk(self) -> bytes:
        first, self._numbers = self._numbers, self._numbers + self.per_chunk
        head = struct.pack(">HHBI", _PUBLISH, 1, 0, self.per_chunk)
        entries = b"".join(number.to_bytes(8) + self._entry for number in range(first, self._numbers))
        return _framed(head + entries)


def _many(value: bytes, count: int) -> bytes:
    """Several records in one entry, uncompressed: what its clients do when they are told to."""
    inner = (struct.pack(">I", len(value)) + value) * count
    return struct.pack(">BHII", 0x80, count, len(inner), len(inner)) + inner


class StreamFrames:
    """Counts what was confirmed, and records that were delivered, in frames that are cut anywhere."""

    _HEAD: Final = 4 + 13
    """As much of a frame as says what is in it."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._found = 0

    def feed(self, data: memoryview) -> int:
        count, position, end = 0, 0, len(data)
        while position < end:
            if self._left:
                step = min(self._left, end - position)
                position += step
                self._left -= step
            else:
                size = int.from_bytes(self._head[:4]) if len(self._head) >= 4 else self._HEAD
                want = min(4 + size, self._HEAD) if len(self._head) >= 4 else 4
                take = want - len(self._head)
                self._head += bytes(data[position : position + take])
                position = min(position + take, end)
                if len(self._head) < want or want == 4:
                    continue
                self._found = _records_in(self._head[4:])
                self._left = 4 + size - want
                self._head = b""
            if not self._left and not self._head:
                count += self._found
                self._found = 0
        return count


def _records_in(head: bytes) -> int:
    key = int.from_bytes(head[:2])
    if key == _CONFIRM:
        return int.from_bytes(head[5:9])
    if key == _DELIVER:
        return int.from_bytes(head[9:13])
    if key == _REFUSED or (key & _ANSWER and int.from_bytes(head[8:10]) != _WELL):
        raise RuntimeError(f"rabbitmq refuses: {head.hex()}")
    return 0
