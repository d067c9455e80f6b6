"""Send damaged requests to a running server, which must answer or close the connection, stay alive, and not grow.

A run depends only on its seed and number, so any run can be repeated. Valid requests come from the dialect's examples.
After each run a new connection plays the first example, whose answer must be as expected. Memory is watched if the
server's process is local and known.
"""

import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from braidlog.tools.wire.annotated_hex import Capture, Item, Piece, Region, Repeat, encode
from braidlog.tools.wire.capture.message_format import rows_of
from braidlog.tools.wire.capture.observed_connection import Watcher
from braidlog.tools.wire.examples import example
from braidlog.tools.wire.script import Case, Expect, Send, read_script
from braidlog.tools.wire.script_runner import Connection, run
from braidlog.wire.observer import Side

LINGER_SECONDS: Final = 0.2
"""How long a run waits for an answer; an incomplete frame has none."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
DAMAGES_MAX: Final = 4
WARM_RUNS: Final = 20
"""Runs before memory is first measured."""
_NUMBERS: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)

Damage = Callable[[random.Random, bytearray], None]


class FuzzSettings(msgspec.Struct, frozen=True):
    """Settings of a fuzz test. `pid`: the server's process; 0: do not watch memory."""

    dialect: str
    host: str
    port: int
    runs: int = 1000
    seed: int = 0
    first_run: int = 0
    timeout: float = 10.0
    pid: int = 0
    memory_growth_bytes_max: int = 256 * 1024 * 1024


class Run(msgspec.Struct, frozen=True):
    """Requests of a run."""

    number: int
    case: str
    messages: tuple[bytes, ...]


class Failure(msgspec.Struct, frozen=True):
    """A failure, with the bytes that caused it."""

    run: Run
    why: str


class Report(msgspec.Struct):
    runs: int = 0
    answered: int = 0
    closed: int = 0
    silent: int = 0
    memory_growth_bytes: int | None = None
    failure: Failure | None = None


# -- damage ----------------------------------------------------------------------------------------------------


def _flip(chance: random.Random, data: bytearray) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _overwrite(chance: random.Random, data: bytearray) -> None:
    data[chance.randrange(len(data))] = chance.randrange(256)


def _number(chance: random.Random, data: bytearray) -> None:
    """Overwrite a number, since lengths and counts are often trusted."""
    size = chance.choice((1, 2, 4, 8))
    at = chance.randrange(len(data))
    value = chance.choice(_NUMBERS) + chance.choice((-1, 0, 0, 1))
    data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "big")


def _cut(chance: random.Random, data: bytearray) -> None:
    del data[chance.randrange(1, len(data) + 1) :]


def _remove(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randint(1, 8)]


def _insert(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.randbytes(chance.randint(1, 8))


def _again(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data))
    piece = data[at : at + chance.randint(1, 32)]
    data[at:at] = piece * chance.randint(1, 16)


def _digits(chance: random.Random, data: bytearray) -> None:
    """Replace a decimal number in a text."""
    places = [index for index, byte in enumerate(data) if 0x30 <= byte <= 0x39]
    if places:
        at = chance.choice(places)
        data[at : at + 1] = str(chance.choice((-1, 2**31, 2**63, 2**64, 10**40))).encode()


DAMAGES: Final[tuple[Damage, ...]] = (_flip, _overwrite, _number, _number, _cut, _remove, _insert, _again, _digits)


def corpus(dialect: str) -> list[tuple[str, tuple[bytes, ...]]]:
    """Return the valid requests of each example by name. Captured values are 1."""
    found = []
    for case in read_script(example(dialect)):
        known: dict[str, int | bytes] = dict.fromkeys(_captured(case), 1)
        found.append(
            (case.name, tuple(encode(step.items, known, step.line) for step in case.steps if isinstance(step, Send)))
        )
    return found


def _captured(case: Case) -> Iterator[str]:
    for step in case.steps:
        if isinstance(step, Expect):
            yield from _names(step.items)


def _names(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Region | Repeat):
            yield from _names(item.items)
        elif isinstance(item, Piece):
            yield item.name
        elif isinstance(source := getattr(item, "source", None), Capture):
            yield source.name


def make_run(cases: Sequence[tuple[str, tuple[bytes, ...]]], seed: int, number: int) -> Run:
    """Return a run: a conversation with one damaged request."""
    chance = random.Random(f"{seed} {number}")  # noqa: S311 - damage, not secrets
    name, messages = chance.choice(cases)
    which = chance.randrange(len(messages))
    data = bytearray(messages[which])
    for _ in range(chance.randint(1, DAMAGES_MAX)):
        if data:
            chance.choice(DAMAGES)(chance, data)
    return Run(number, name, (*messages[:which], bytes(data), *messages[which + 1 :]))


# -- the server ------------------------------------------------------------------------------------------------


def fuzz(settings: FuzzSettings, progress: Callable[[Report], None] = lambda _: None) -> Report:
    """Execute runs until one fails. Raises `OSError` if the server is not reachable at the start."""
    cases = corpus(settings.dialect)
    probe = read_script(example(settings.dialect))[0]
    to = Connection(settings.host, settings.port, settings.timeout, dialect=settings.dialect)
    if not run(probe, to, {}).is_as_expected:
        raise ConnectionError(f"the server does not answer the first example of {settings.dialect} correctly")
    report = Report()
    before: int | None = None
    for number in range(settings.first_run, settings.first_run + settings.runs):
        made = make_run(cases, settings.seed, number)
        why = _play(made, settings, report) or _ill(probe, to)
        report.runs += 1
        if settings.pid and report.runs >= min(WARM_RUNS, settings.runs):
            resident = resident_bytes(settings.pid)
            before = resident if before is None else before
            report.memory_growth_bytes = resident - before
            if report.memory_growth_bytes > settings.memory_growth_bytes_max:
                why = why or f"server memory grew by {report.memory_growth_bytes} bytes"
        if why is not None:
            report.failure = Failure(made, why)
            break
        progress(report)
    return report


def _play(made: Run, settings: FuzzSettings, report: Report) -> str | None:
    """Send a run and read the answers; return the server's failure, if any."""
    watcher = Watcher(settings.dialect)
    came = 0
    try:
        with socket.create_connection((settings.host, settings.port), timeout=settings.timeout) as wire:
            ended = _say(wire, made)
            deadline = time.monotonic() + LINGER_SECONDS
            while not ended and (left := deadline - time.monotonic()) > 0 and came < ANSWER_BYTES_MAX:
                wire.settimeout(left)
                try:
                    data = wire.recv(64 * 1024)
                except TimeoutError:
                    break
                except ConnectionError:
                    data = b""
                ended = not data
                came += len(data)
                list(watcher.feed(Side.SERVER, data))
                if watcher.is_broken(Side.SERVER):
                    return "the server answered with invalid bytes"
    except OSError as error:
        return f"not reachable: {error.strerror or error}"
    report.answered += came > 0
    report.closed += ended
    report.silent += not ended and not came
    return None


def _say(wire: socket.socket, made: Run) -> bool:
    """Send the run; return whether the server closed the connection."""
    try:
        for data in made.messages:
            wire.sendall(data)
        wire.shutdown(socket.SHUT_WR)  # the server answers everything and closes, without waiting for more requests
    except (ConnectionError, TimeoutError):
        return True
    except OSError:
        return False
    return False


def _ill(probe: Case, to: Connection) -> str | None:
    try:
        outcome = run(probe, to, {})
    except OSError as error:
        return f"not reachable after the run: {error.strerror or error}"
    if outcome.difference is not None:
        return f"no correct answer to a valid request after the run: {outcome.difference.message}"
    return None


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process from /proc."""
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def as_script(failure: Failure, settings: FuzzSettings) -> str:
    """Return the run as a file for `braid wire send`."""
    made = failure.run
    lines = [
        f"# braid wire fuzz --dialect {settings.dialect} --seed {settings.seed} --first-run {made.number} --runs 1",
        f"# {failure.why}",
        f"== {made.case}, damaged by seed {settings.seed}, run {made.number}",
    ]
    for data in made.messages:
        lines += [*rows_of(">", data), ""]
    return "\n".join(lines) + "\n"
