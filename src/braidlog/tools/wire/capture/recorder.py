"""Write wire logs and captures, in a thread with a bounded queue.

Callers never block and never fail: data that does not fit the queue is dropped, counted and reported in the log. A
connection that lost bytes is no longer decoded, since message boundaries are unknown. Secrets are never written.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, Final, NamedTuple

from braidlog.tools.wire.capture.message_format import Moment, event_json, event_text, json_of, text_of
from braidlog.tools.wire.capture.observed_connection import Watcher
from braidlog.tools.wire.capture.observed_message import Seen
from braidlog.tools.wire.capture.pcapng import SEGMENT_BYTES_MAX, Address, CaptureWriter
from braidlog.tools.wire.private_file import create_private
from braidlog.wire.observer import Side

log = logging.getLogger("braidlog.wirelog")

QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
CLOSE_SECONDS_MAX: Final = 10.0
ENTRY_BYTES: Final = 256
"""Memory of an entry in addition to its bytes."""


class RecorderSettings(NamedTuple):
    """Settings of a recorder. `path`: "-" is standard output, "" writes only a capture."""

    path: str = "-"
    format: str = "text"
    with_bytes: bool = False
    capture_path: str = ""
    queue_bytes_max: int = QUEUE_BYTES_MAX


class _Entry(NamedTuple):
    time_ns: int
    connection: int
    event: str
    side: Side | None
    data: bytes
    detail: tuple[str, Address, Address] | None


class _Followed:
    """State of a connection in the writer thread."""

    def __init__(self, dialect: str, name: str, client: Address, server: Address) -> None:
        self.dialect = dialect
        self.name = name
        self.client = client
        self.server = server
        self.watcher: Watcher | None = Watcher(dialect)


class Recorder:
    """`opened`, `spoke` and `closed` are thread-safe; `close` waits until everything is written."""

    def __init__(self, settings: RecorderSettings, now_ns: Callable[[], int]) -> None:
        self._settings = settings
        self._now_ns = now_ns
        self._owned: list[BinaryIO] = []
        self._out = self._file(settings.path)
        capture = self._file(settings.capture_path)
        self._capture = None if capture is None else CaptureWriter(capture)
        self._queue: deque[_Entry] = deque()
        self._queued_bytes = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._connections = 0
        self._lost: dict[int, int] = {}
        self.dropped_bytes = 0
        self._told_bytes = 0
        self._followed: dict[int, _Followed] = {}
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="wire log", daemon=True)
        self._thread.start()

    def _file(self, path: str) -> BinaryIO | None:
        if not path:
            return None
        if path == "-":
            return sys.stdout.buffer
        file = create_private(path)
        self._owned.append(file)
        return file

    # -- callers -----------------------------------------------------------------------------------------------

    def opened(self, dialect: str, client: Address, server: Address) -> int:
        """Register a connection; return its number for later calls."""
        with self._wake:
            self._connections += 1
            number = self._connections
        self._report(number, "open", None, b"", (dialect, client, server))
        return number

    def spoke(self, connection: int, side: Side, data: bytes) -> None:
        self._report(connection, "spoke", side, data)

    def closed(self, connection: int) -> None:
        self._report(connection, "closed", None, b"")

    def _report(
        self,
        connection: int,
        event: str,
        side: Side | None,
        data: bytes,
        detail: tuple[str, Address, Address] | None = None,
    ) -> None:
        entry = _Entry(self._now_ns(), connection, event, side, data, detail)
        with self._wake:
            is_full = self._queued_bytes + len(data) > self._settings.queue_bytes_max
            # Open and close entries are small and required: only bytes are dropped.
            if data and (is_full or connection in self._lost or self._failure is not None):
                self._lost[connection] = self._lost.get(connection, 0) + len(data)
                self.dropped_bytes += len(data)
                return
            self._queue.append(entry)
            self._queued_bytes += len(data) + ENTRY_BYTES
            self._wake.notify()

    # -- writer thread -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the queued entries, then stop."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(CLOSE_SECONDS_MAX)
        if self._thread.is_alive():  # its output pipe is blocked
            log.error("wire log closed: output is blocked, queued entries lost")
            return
        for file in self._owned:
            try:
                file.close()
            except OSError as error:
                if self._failure is None:
                    log.error("wire log closed: queued entries lost: %s", error)  # noqa: TRY400 - the error is sufficient

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping:
                    self._wake.wait()
                entries, self._queue = self._queue, deque()
                self._queued_bytes = 0
                lost = {number: size for number, size in self._lost.items() if size > 0}
                stopping = self._stopping
            for entry in entries:
                self._guarded(self._write, entry)
            self._tell_lost(lost)
            self._guarded(self._flush)
            if stopping and not self._queue:
                return

    def _guarded(self, action: Callable[..., None], *arguments: object) -> None:
        """Run an action; a write error stops only the log."""
        if self._failure is not None:
            return
        try:
            action(*arguments)
        except OSError as error:
            self._failure = error
            log.error("wire log stopped: %s", error)  # noqa: TRY400 - the error names the file
        except Exception:  # a bug: report the lost entry
            log.exception("wire log entry lost")

    def _flush(self) -> None:
        for file in {self._out, *self._owned} - {None}:
            assert file is not None
            file.flush()

    def _tell_lost(self, lost: dict[int, int]) -> None:
        if self.dropped_bytes > self._told_bytes:
            log.warning("wire log too slow: dropped_bytes=%d", self.dropped_bytes - self._told_bytes)
            self._told_bytes = self.dropped_bytes
        for number in lost:
            followed = self._followed.get(number)
            if followed is not None:
                self._guarded(self._tell_gap, followed, self._now_ns())

    def _tell_gap(self, followed: _Followed, time_ns: int) -> None:
        if followed.watcher is not None:
            followed.watcher = None
            self._event(followed, time_ns, "gap", "bytes dropped, decoding stopped")

    def _write(self, entry: _Entry) -> None:
        if entry.detail is not None:
            dialect, client, server = entry.detail
            followed = self._followed[entry.connection] = _Followed(dialect, f"c{entry.connection}", client, server)
            if self._capture is not None:
                self._capture.open(followed.name, client, server, entry.time_ns)
            self._event(followed, entry.time_ns, "open", f"{client.host}:{client.port}")
            return
        followed = self._followed[entry.connection]
        if entry.side is not None:
            if followed.watcher is not None:
                for seen in followed.watcher.feed(entry.side, entry.data):
                    self._message(followed, entry.time_ns, seen)
            return
        self._end(followed, entry)

    def _end(self, followed: _Followed, entry: _Entry) -> None:
        with self._wake:
            is_lost = self._lost.pop(entry.connection, 0) > 0
        if is_lost:
            self._tell_gap(followed, entry.time_ns)
        if followed.watcher is not None:
            for side in Side:
                for seen in followed.watcher.end(side):
                    self._message(followed, entry.time_ns, seen)
        if self._capture is not None:
            self._capture.close(followed.name, entry.time_ns)
        self._event(followed, entry.time_ns, "closed", "")
        del self._followed[entry.connection]

    def _moment(self, followed: _Followed, time_ns: int) -> Moment:
        return Moment(time_ns, followed.dialect, followed.name, f"{followed.client.host}:{followed.client.port}")

    def _message(self, followed: _Followed, time_ns: int, seen: Seen) -> None:
        if self._capture is not None:
            self._capture.write(followed.name, seen.side, seen.data, time_ns)
            for at in range(
                0, seen.left_out, SEGMENT_BYTES_MAX
            ):  # placeholder of omitted bytes, so that later positions are right
                self._capture.write(
                    followed.name, seen.side, bytes(min(SEGMENT_BYTES_MAX, seen.left_out - at)), time_ns
                )
        if self._out is None:
            return
        moment, with_bytes = self._moment(followed, time_ns), self._settings.with_bytes
        if self._settings.format == "json":
            self._out.write(json_of(moment, seen, with_bytes=with_bytes))
        else:
            self._out.write(text_of(moment, seen, with_bytes=with_bytes).encode())

    def _event(self, followed: _Followed, time_ns: int, event: str, detail: str) -> None:
        if self._out is None:
            return
        moment = self._moment(followed, time_ns)
        if self._settings.format == "json":
            self._out.write(event_json(moment, event, detail))
        else:
            self._out.write(event_text(moment, event, detail).encode())
