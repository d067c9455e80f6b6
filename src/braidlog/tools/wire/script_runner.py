"""Play cases of annotated hex against a server, and compare the answers.

Every wait is limited by `timeout`. A difference names the line of the file, the first different byte, the expected and
the received bytes.

Bytes are compared with the wildcards of the notation. Answers of a log are compared as messages, by name and fields,
except for fields that the dialect declares volatile; if the dialect answers out of order, messages are matched by id.
"""

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from braidlog.tools.wire.annotated_hex import Hidden, Item, Literal, NotationError, encode
from braidlog.tools.wire.answer_matching import Different, Matched, MoreNeeded, cells, match
from braidlog.tools.wire.capture.message_format import ROW_BYTES, hex_pairs, sentence
from braidlog.tools.wire.capture.observed_connection import Watcher
from braidlog.tools.wire.capture.observed_message import Seen
from braidlog.tools.wire.network_faults import Splitter
from braidlog.tools.wire.script import Case, Expect, ExpectClose, ExpectNothing, Send, Step
from braidlog.wire.dialect import watched
from braidlog.wire.observer import Side

RECEIVE_BYTES: Final = 64 * 1024
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


class Connection(msgspec.Struct, frozen=True):
    """Address and timeout."""

    host: str
    port: int
    timeout: float = 5.0
    split: str = ""
    secret: bytes | None = None
    dialect: str | None = None


class Difference(msgspec.Struct, frozen=True):
    """A difference between an answer and the expected one. `position` counts from the first byte of the answer."""

    line: int
    message: str
    position: int | None = None
    expected: str = ""
    received: str = ""


class Outcome(msgspec.Struct):
    """Result of a case. `answers`: the received bytes."""

    case: str
    sent_bytes: int = 0
    answers: list[bytes] = []
    messages: list[Seen] = []
    difference: Difference | None = None
    closed: bool = False

    @property
    def is_as_expected(self) -> bool:
        return self.difference is None


class _Stop(Exception):  # noqa: N818 - ends the case with a result
    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.message)
        self.difference = difference


def run(case: Case, to: Connection, variables: dict[str, int | bytes], *, as_messages: bool = False) -> Outcome:
    """Play a case on a new connection. Raises `OSError` if the server is not reachable."""
    with socket.create_connection((to.host, to.port), timeout=to.timeout) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        player = (_MessagePlayer if as_messages else _BytePlayer)(case, to, wire, dict(variables))
        try:
            player.play()
        except _Stop as stop:
            player.outcome.difference = stop.difference
        except OSError as error:
            player.outcome.difference = Difference(player.line, f"connection failed: {error.strerror or error}")
        player.watch()
        return player.outcome


class _Player:
    """Plays steps in order; keeps received bytes that no step has consumed in `_held`."""

    def __init__(self, case: Case, to: Connection, wire: socket.socket, variables: dict[str, int | bytes]) -> None:
        self._case = case
        self._to = to
        self._wire = wire
        self._variables = variables
        self._held = b""
        self._all = bytearray()
        self._spoken: list[tuple[Side, bytes]] = []
        self._splitter = Splitter(to.split)
        self.line = 0
        self.outcome = Outcome(case.name)

    def play(self) -> None:
        for step in self._steps():
            self.line = step.line
            match step:
                case Send():
                    self._send(step)
                case Expect():
                    self._expect(step)
                case ExpectClose():
                    self._expect_close(step)
                case ExpectNothing(milliseconds, _):
                    self._expect_nothing(milliseconds)
        if not self._case.expects:
            self._collect()
        elif self._held:
            shown = _row(self._held)
            raise _Stop(Difference(self.line, f"{len(self._held)} unexpected bytes", 0, "nothing", shown))

    def _steps(self) -> Iterator[Step]:
        yield from self._case.steps

    def watch(self) -> None:
        """Decode the conversation, if the dialect is known."""
        dialect = self._to.dialect or self._case.dialect
        if dialect is None:
            return
        watcher = Watcher(dialect)
        for side, data in self._spoken:
            self.outcome.messages += [seen for seen in watcher.feed(side, data) if seen.side is Side.SERVER]

    def _send(self, step: Send) -> None:
        data = encode(step.items, self._variables, step.line, self._to.secret)
        self._spoken.append((Side.CLIENT, data))
        self.outcome.sent_bytes += len(data)
        self._wire.settimeout(self._to.timeout)
        # The server may close the connection during an invalid request; the next expectation decides whether that is correct.
        with contextlib.suppress(ConnectionError):
            for piece in self._splitter.pieces(data):
                self._wire.sendall(piece)

    def _expect(self, step: Expect) -> None:
        raise NotImplementedError

    def _receive(self, deadline: float) -> bool:
        """Read more bytes; return False if none arrive before the deadline."""
        left = deadline - time.monotonic()
        if left <= 0 or self.outcome.closed:
            return False
        self._wire.settimeout(left)
        try:
            data = self._wire.recv(RECEIVE_BYTES)
        except TimeoutError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self.outcome.closed = True
            return False
        self._all += data
        if len(self._all) > ANSWER_BYTES_MAX:
            raise _Stop(Difference(self.line, f"more than {ANSWER_BYTES_MAX} bytes received"))
        self._spoken.append((Side.SERVER, data))
        self._held += data
        return True

    def _deadline(self) -> float:
        return time.monotonic() + self._to.timeout

    def _collect(self) -> None:
        """Collect all bytes until the server is silent, if nothing is expected."""
        while self._receive(self._deadline()):
            pass
        if self._held:
            self.outcome.answers.append(self._held)
            self._held = b""

    def _expect_close(self, step: ExpectClose) -> None:
        deadline = self._deadline()
        while self._receive(deadline):
            pass
        if self._held:
            raise _Stop(Difference(step.line, "received bytes instead of a close", 0, "nothing", _row(self._held)))
        if not self.outcome.closed:
            raise _Stop(Difference(step.line, f"the connection is still open after {self._to.timeout:g} s"))

    def _expect_nothing(self, milliseconds: int) -> None:
        if self._held or self._receive(time.monotonic() + milliseconds / 1000):
            raise _Stop(Difference(self.line, "received unexpected bytes", 0, "nothing", _row(self._held)))
        if self.outcome.closed:
            raise _Stop(Difference(self.line, "the connection was closed"))


class _BytePlayer(_Player):
    def _expect(self, step: Expect) -> None:
        found = self._matched(step)
        self._variables.update(found.captured)
        self.outcome.answers.append(self._held[: found.end])
        self._held = self._held[found.end :]

    def _matched(self, step: Expect) -> Matched:
        deadline = self._deadline()
        while True:
            try:
                return match(step.items, self._held, self._variables, complete=self.outcome.closed)
            except MoreNeeded as more:
                if not self._receive(deadline) and not self.outcome.closed:
                    why = f"no more bytes within {self._to.timeout:g} s; expected {more.expected}"
                    raise _Stop(self._difference(step, len(self._held), why)) from None
            except Different as different:
                came = self._held[different.position : different.position + 1].hex().upper()
                what = f"received {came}" if came else "connection closed"
                raise _Stop(
                    self._difference(step, different.position, f"{what}, expected {different.expected}")
                ) from None

    def _difference(self, step: Expect, position: int, why: str) -> Difference:
        """Return the row of sixteen bytes with the first difference, expected and received."""
        start = position // ROW_BYTES * ROW_BYTES
        wanted = cells(step.items, self._variables)[start : start + ROW_BYTES]
        came = hex_pairs(self._held[start : start + ROW_BYTES])
        return Difference(step.line, f"byte {position} of the answer: {why}", position, " ".join(wanted), came)


class _MessagePlayer(_Player):
    """Compares answers as messages. Consecutive answers are awaited together, since their order may differ."""

    def __init__(self, case: Case, to: Connection, wire: socket.socket, variables: dict[str, int | bytes]) -> None:
        super().__init__(case, to, wire, variables)
        dialect = to.dialect or case.dialect
        if dialect is None:
            raise NotationError("comparing messages needs the dialect: pass --dialect", 1)
        self._was = Watcher(dialect)
        self._is = Watcher(dialect)
        self._due: list[tuple[int, Seen]] = []

    def _steps(self) -> Iterator[Step]:
        for step in self._case.steps:
            if not isinstance(step, Expect):
                self._settle()
            yield step
        self._settle()

    def _send(self, step: Send) -> None:
        list(self._was.feed(Side.CLIENT, written(step.items, step.line)))
        super()._send(step)
        list(self._is.feed(Side.CLIENT, self._spoken[-1][1]))

    def _expect(self, step: Expect) -> None:
        self._due += [(step.line, seen) for seen in self._was.feed(Side.SERVER, written(step.items, step.line))]

    def _settle(self) -> None:
        due, self._due = self._due, []
        if not due:
            return
        came: list[Seen] = []
        deadline = self._deadline()
        while len(came) < len(due):
            came += self._is.feed(Side.SERVER, self._held)
            self._held = b""
            if len(came) < len(due) and not self._receive(deadline):
                line, missing = due[len(came)]
                ending = "connection closed" if self.outcome.closed else f"no more bytes within {self._to.timeout:g} s"
                raise _Stop(Difference(line, f"{ending}; expected {missing.name}", None, sentence(missing), ""))
        self.outcome.answers += [seen.data for seen in came]
        dialect = self._was.dialect
        if not self._was.is_ordered:
            due.sort(key=lambda each: _identity(each[1], dialect))
            came.sort(key=lambda each: _identity(each, dialect))
        for (line, wanted), found in zip(due, came, strict=False):
            told = _told_apart(wanted, found, self._was)
            if told is not None:
                raise _Stop(Difference(line, told, None, sentence(wanted), sentence(found)))


def written(items: Sequence[Item], line: int) -> bytes:
    """Return the bytes of a log entry, with filler for hidden bytes."""
    out = bytearray()
    for item in items:
        match item:
            case Literal(data):
                out += data
            case Hidden(count):
                out += b"*" * count
            case _:
                raise NotationError("comparing messages needs literal bytes", line)
    return bytes(out)


def _identity(seen: Seen, dialect: str) -> str:
    return str(seen.head.get(watched()[dialect].request_id or "", ""))


def _told_apart(wanted: Seen, found: Seen, watcher: Watcher) -> str | None:
    """Describe the difference of two messages; None if they are equal."""
    if wanted.name != found.name:
        return f"received {found.name}, expected {wanted.name}"
    due, came = _identity(wanted, watcher.dialect), _identity(found, watcher.dialect)
    if due != came:
        return f"received the answer to {came}, expected the answer to {due}"
    before, after = stable(wanted.fields, watcher.volatile), stable(found.fields, watcher.volatile)
    if before == after:
        return None
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return f"{wanted.name} differs in {', '.join(names)}"


def stable(value: Any, volatile: frozenset[str]) -> Any:  # noqa: ANN401 - any field
    """Return the fields without volatile ones."""
    if isinstance(value, dict):
        return {name: stable(each, volatile) for name, each in value.items() if name not in volatile}
    if isinstance(value, list):
        return [stable(each, volatile) for each in value]
    return value


def _row(data: bytes) -> str:
    return hex_pairs(data[:ROW_BYTES])
