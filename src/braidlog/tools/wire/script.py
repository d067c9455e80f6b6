"""Parse files of annotated hex: cases, each a conversation of requests and expected answers.

A wire log with bytes is such a file. Does not handle: words of a line (`annotated_hex.py`), sockets (`script_runner.py`).

    # comment                    also after bytes
    == name                      start of a case, with its own connection
    Source: somewhere            a note: a word and a colon at the start of a line
    > bytes                      send; consecutive lines are one message, a blank line or `--` ends it
    < bytes                      expect
    bytes                        a line without an arrow is sent
    close                        expect that the server closes the connection
    nothing 200ms                expect no bytes for this time
"""

import re
from typing import Final, NamedTuple

from braidlog.tools.wire.annotated_hex import Item, NotationError, Word, parse, words_of
from braidlog.tools.wire.capture.transcript import head_of, is_json_log, lines_of_json_log

_NOTE: Final = re.compile(r"[A-Za-z][\w ]*:(?:\s.*)?")
_NOTHING: Final = re.compile(r"nothing ([0-9]{1,6})ms")
_SEPARATOR: Final = "--"
SILENCE_MS_MAX: Final = 60_000


class Send(NamedTuple):
    items: tuple[Item, ...]
    line: int


class Expect(NamedTuple):
    items: tuple[Item, ...]
    line: int


class ExpectClose(NamedTuple):
    line: int


class ExpectNothing(NamedTuple):
    milliseconds: int
    line: int


Step = Send | Expect | ExpectClose | ExpectNothing


class Case(NamedTuple):
    name: str
    steps: tuple[Step, ...]
    dialect: str | None = None
    """The dialect, if the file is a log."""

    @property
    def expects(self) -> bool:
        return any(not isinstance(step, Send) for step in self.steps)


def read_script(text: str) -> list[Case]:
    """Parse the cases of a file. Raises `NotationError` with the line."""
    if is_json_log(text):
        text = lines_of_json_log(text)
    return _Reader().read(text)


class _Reader:
    def __init__(self) -> None:
        self._cases: dict[str, list[Step]] = {}
        self._dialects: dict[str, str] = {}
        self._name = ""
        self._arrow = ""
        self._words: list[Word] = []
        self._line = 0

    def read(self, text: str) -> list[Case]:
        for number, line in enumerate(text.splitlines(), 1):
            self._take(line.strip(), number)
        self._finish()
        return [Case(name, tuple(steps), self._dialects.get(name)) for name, steps in self._cases.items() if steps]

    def _take(self, line: str, number: int) -> None:
        if self._is_open:  # inside brackets every line continues the message
            self._add(line[1:] if line[:2] in ("> ", "< ", ">", "<") else line, number)
            return
        if not line or line == _SEPARATOR:
            self._finish()
        elif line.startswith("#"):
            return
        elif line.startswith("== "):
            self._finish()
            self._begin(line[3:].strip(), number)
        elif head := head_of(line):
            self._finish()
            self._name = head.connection
            self._dialects.setdefault(head.connection, head.dialect)
        elif line[0] in "<>":
            self._bytes(line[0], line[1:], number)
        else:
            self._other(line, number)

    @property
    def _is_open(self) -> bool:
        opened = sum(word.text.endswith(("[", "{")) and word.text[0] not in '"`' for word in self._words)
        closed = sum(word.text in ("]", "}") for word in self._words)
        return opened > closed

    def _begin(self, name: str, number: int) -> None:
        if name in self._cases:
            raise NotationError(f"duplicate case {name!r}", number)
        self._name = name
        self._cases[name] = []

    def _other(self, line: str, number: int) -> None:
        words = line.split("#", 1)[0].strip()
        if words == "close":
            self._finish()
            self._step(ExpectClose(number))
        elif nothing := _NOTHING.fullmatch(words):
            self._finish()
            if int(nothing[1]) > SILENCE_MS_MAX:
                raise NotationError(f"nothing is limited to {SILENCE_MS_MAX} ms", number)
            self._step(ExpectNothing(int(nothing[1]), number))
        elif _NOTE.fullmatch(line):
            self._finish()
        else:
            self._bytes(">", line, number)

    def _bytes(self, arrow: str, text: str, number: int) -> None:
        if arrow != self._arrow:
            self._finish()
            self._arrow = arrow
        self._add(text, number)

    def _add(self, text: str, number: int) -> None:
        self._line = self._line or number
        self._words += words_of(text, number)

    def _finish(self) -> None:
        """Finish the current message."""
        if self._words:
            items = parse(self._words)
            self._step(Send(items, self._line) if self._arrow == ">" else Expect(items, self._line))
        self._arrow, self._words, self._line = "", [], 0

    def _step(self, step: Step) -> None:
        self._cases.setdefault(self._name, []).append(step)
