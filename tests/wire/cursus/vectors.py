"""Read the golden vectors: text files whose bytes were written by people or captured from foreign clients.

    Source: where the bytes come from
    spelling: document                      a line before the first blank one holds for the whole file

    # a comment
    operation: CREATE
    > 0000000F "CREATE orders 4"        > from the client, < from the broker; hex and "text"; LEN is the length of what follows
    message: Create("orders", 4)        what it means, as Python

Further lines: `mode: both | read | refuse` (read: we write it differently), `error:` and `close: yes` for a refusal,
`envelope: empty | admin`, `compression: gzip`.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from braidlog.wire.cursus import answers, batch, failures, requests

FOLDER = Path(__file__).parent / "vectors"
_TOKEN = re.compile(r'#.*$|"(?:[^"\\]|\\.)*"|\S+')
_NAMES: dict[str, Any] = {**vars(requests), **vars(batch), **vars(failures), **vars(answers)}


class Vector(NamedTuple):
    """One conversation of one message."""

    name: str
    data: bytes
    from_client: bool
    lines: dict[str, str]

    @property
    def message(self) -> Any:
        return eval(self.lines["message"], dict(_NAMES))

    @property
    def mode(self) -> str:
        return self.lines.get("mode", "both")

    @property
    def spelling(self) -> batch.Spelling:
        return batch.Spelling(self.lines.get("spelling", "clients"))

    @property
    def operation(self) -> str:
        return self.lines["operation"]


def load() -> list[Vector]:
    return [vector for path in sorted(FOLDER.glob("*.vec")) for vector in _load_file(path)]


def _load_file(path: Path) -> list[Vector]:
    first, *blocks = path.read_text("utf-8").split("\n\n")
    shared, _, _ = _lines(first)
    assert shared.get("Source"), f"{path.name} does not say where its bytes come from"
    vectors = []
    for number, block in enumerate(blocks, 1):
        lines, data, direction = _lines(block)
        if direction:
            vectors.append(Vector(f"{path.stem}-{number}", data, direction == ">", {**shared, **lines}))
    return vectors


def _lines(block: str) -> tuple[dict[str, str], bytes, str]:
    lines: dict[str, str] = {}
    tokens: list[str] = []
    direction = ""
    for line in block.splitlines():
        if line.startswith(("> ", "< ")):
            direction = line[0]
            tokens += _TOKEN.findall(line[2:])
        elif line and not line.startswith("#"):
            key, _, value = line.partition(":")
            lines[key] = value.strip()
    return lines, _bytes(tokens), direction


def _bytes(tokens: list[str]) -> bytes:
    frames: list[bytearray] = [bytearray()]
    measured = [False]
    for token in tokens:
        if token.startswith("#"):
            continue
        if token == "LEN":
            frames.append(bytearray())
            measured.append(True)
        elif token.startswith('"'):
            frames[-1] += json.loads(token).encode()
        else:
            frames[-1] += bytes.fromhex(token)
    pairs = zip(frames, measured, strict=True)
    return b"".join((len(f).to_bytes(4, "big") if said else b"") + bytes(f) for f, said in pairs)


VECTORS = load()
