"""Golden vectors: text files of bytes with their meaning.

Source: where every vector of the file comes from
vector: name
> 0002 0000000d `{"Topic":"a"}`      client to server (`<` the other way, `=` bytes without a frame): hex, and text in backticks
message: DeleteTopicRequest(topic="a")      what it means, and what these bytes are written for
canonical: 0002 ...                         or: it means what these bytes mean
refused: yes                                or: it must not be taken
"""

import ast
import re
from pathlib import Path
from typing import Any

import msgspec

from braidlog.wire.mlog import errors, messages, replication

from . import batches

FOLDER = Path(__file__).with_name("vectors")

_PIECE = re.compile(r"`([^`]*)`|([0-9a-f]+)")


class Vector(msgspec.Struct, frozen=True):
    file: str
    name: str
    direction: str
    data: bytes
    message: Any
    canonical: bytes | None
    refused: bool

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


def load(*files: str) -> list[Vector]:
    """The vectors of the named files, of all files if none is named."""
    names = files or tuple(sorted(path.stem for path in FOLDER.glob("*.vec")))
    return [vector for name in names for vector in _load_file(name)]


def _load_file(name: str) -> list[Vector]:
    head, *blocks = (FOLDER / f"{name}.vec").read_text(encoding="utf-8").split("\nvector: ")
    assert head.startswith("Source: "), f"{name}.vec does not say where it comes from"
    return [_vector(name, block) for block in blocks]


def _vector(file: str, block: str) -> Vector:
    name, *lines = block.strip("\n").split("\n")
    direction, data, facts = "", b"", dict[str, str]()
    for line in lines:
        if line.startswith("#") or not line:
            continue
        word, _, rest = line.partition(" ")
        if word in ("<", ">", "="):
            direction, data = word, _bytes(rest)
        else:
            facts[word] = rest
    assert (bool(direction), len(facts)) == (True, 1), f"{file}.vec, {name}: bytes and one meaning are wanted"
    return Vector(
        file,
        name,
        direction,
        data,
        _value(ast.parse(facts["message:"], mode="eval").body) if "message:" in facts else None,
        _bytes(facts["canonical:"]) if "canonical:" in facts else None,
        facts.get("refused:") == "yes",
    )


def _bytes(text: str) -> bytes:
    assert not _PIECE.sub("", text).strip(), text
    return b"".join(m[1].encode() if m[1] is not None else bytes.fromhex(m[2]) for m in _PIECE.finditer(text))


def _value(node: ast.expr) -> Any:
    """`Name(field=value, ...)` with literals, and nothing else."""
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        return _type(node.func.id)(**{str(word.arg): _value(word.value) for word in node.keywords})
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    return ast.literal_eval(node)


def _type(name: str) -> Any:
    return next(getattr(module, name) for module in (messages, errors, replication, batches) if hasattr(module, name))
