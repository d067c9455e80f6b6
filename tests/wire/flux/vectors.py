"""Golden vectors: exchanges written by hand, in text files beside the tests.

A file is blocks between empty lines. In a block, `>` lines are the request's bytes and `<` lines the answer's: hex pairs and
"quoted text" mixed. `means:` gives the message as an expression, `refused:` the id, the code and whether the connection closes.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from braidlog.wire.flux import messages
from braidlog.wire.flux.messages import Answer, Request

_PIECE = re.compile(r'"([^"]*)"|([0-9A-F]{2})(?= |$)')
_NAMES = vars(messages)


@dataclass
class Side:
    """One direction of an exchange. `written`: these are also the bytes that we write."""

    data: bytes = b""
    means: object = None
    written: bool = True


@dataclass
class Vector:
    name: str
    source: str = ""
    sent: Side = field(default_factory=Side)
    answered: Side = field(default_factory=Side)
    refused: tuple[str, str, bool] | None = None

    @property
    def request(self) -> Request:
        assert isinstance(self.sent.means, Request), self.name
        return self.sent.means

    @property
    def answer(self) -> Answer:
        assert isinstance(self.answered.means, Answer), self.name
        return self.answered.means


def read_bytes(text: str) -> bytes:
    data = b""
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        assert piece, f"neither hex nor quoted text: {text[position:]}"
        data += piece[1].encode() if piece[1] is not None else bytes.fromhex(piece[2])
        position = piece.end() + 1
    return data


def read_block(name: str, lines: list[str]) -> Vector:
    vector = Vector(name)
    side = vector.sent
    for line in lines:
        if line.startswith("Source: "):
            vector.source = line[8:]
        elif line[0] in "<>":
            side = vector.sent if line[0] == ">" else vector.answered
            side.data += read_bytes(line[2:])
        elif line.startswith("means: "):
            side.means = eval(line[7:], dict(_NAMES))
        elif line == "read only":
            side.written = False
        else:
            correlation_id, code, end = line.removeprefix("refused: ").split(" ")
            assert end in ("open", "closes"), line
            vector.refused = (correlation_id, code, end == "closes")
    assert vector.source, f"{name} lacks a source"
    assert vector.sent.data, f"{name} lacks bytes"
    assert (vector.sent.means is None) != (vector.refused is None), name
    return vector


def load() -> list[Vector]:
    vectors = []
    for path in sorted(Path(__file__).parent.glob("vectors/*.vec")):
        text = path.read_text(encoding="utf-8")
        blocks = [[line for line in block.splitlines() if line and line[0] != "#"] for block in text.split("\n\n")]
        vectors += [read_block(f"{path.stem}-{at}", block) for at, block in enumerate(filter(None, blocks), 1)]
    return vectors


VECTORS = load()
READ = [vector for vector in VECTORS if vector.refused is None]
REFUSED = [vector for vector in VECTORS if vector.refused is not None]
ANSWERED = [vector for vector in READ if vector.answered.data]
