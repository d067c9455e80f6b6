"""Rejects JSON that is small on the wire and large in memory before it is decoded.

A 4 MB frame of `[[],[],…]` became 101 MB of objects. Counting its brackets and commas first takes milliseconds.
"""

import re

from braidlog.codec.errors import ProtocolError

_BYTE = re.compile(r"\(byte ([0-9]+)\)")
_PATH = re.compile(r"- at `(?:key in )?\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+|\.\.\.)\]")
_TOKEN = re.compile(rb'[\s,:]*("(?:[^"\\]|\\.)*"|[][{}]|[^\s,:\]\[{}"]+)')

TOKENS_MAX = 200_000
DEPTH_MAX = 32


def check_json(data: bytes, *, tokens_max: int = TOKENS_MAX) -> None:
    """Raise if the document has too many values or is nested too deep. Commas inside strings count too: this is an
    upper bound.
    """
    opened = data.count(b"[") + data.count(b"{")
    tokens = opened + data.count(b",")
    if tokens > tokens_max:
        raise ProtocolError(f"JSON has {tokens} values, the limit is {tokens_max}")
    if opened > DEPTH_MAX and _depth(data) > DEPTH_MAX:
        raise ProtocolError(f"JSON is nested deeper than {DEPTH_MAX}")


def _depth(data: bytes) -> int:
    depth = deepest = 0
    in_string = False
    skip = False
    for byte in data:
        if skip:
            skip = False
        elif in_string:
            skip = byte == 0x5C
            in_string = byte != 0x22
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > DEPTH_MAX:
                break
        elif byte in b"]}":
            depth -= 1
    return deepest


def error_position(document: bytes, fault: Exception) -> int | None:
    """Return the position in a document that a decoder's error names, as `(byte 7)` or as the path of a value.

    Used only to show a position to people: msgspec reports it only in its message, which may change.
    """
    words = str(fault)
    if found := _BYTE.search(words):
        return int(found[1])
    path = _PATH.search(words)
    if path is None:
        return len(document) if "truncated" in words else None
    at: int | None = 0
    for key, index in _STEP.findall(path[1]):
        at = None if at is None else _inside(document, at, key, index)
    return at if at is None else _skip_blanks(document, at)


def _inside(document: bytes, at: int, key: str, index: str) -> int | None:
    """Return where the value of a key, or the item with an index, begins in the object or array at `at`."""
    first = _TOKEN.match(document, at)
    if first is None or first[1] not in (b"{", b"["):
        return None
    at, count = first.end(), 0
    while (token := _TOKEN.match(document, at)) is not None and token[1] not in (b"}", b"]"):
        if first[1] == b"{":
            name, at = token[1], token.end()
            if name == b'"%b"' % key.encode():
                return at
        elif index == str(count) or index == "...":
            return at
        at = _past_value(document, at)
        count += 1
    return None


def _past_value(document: bytes, at: int) -> int:
    depth = 0
    while (token := _TOKEN.match(document, at)) is not None:
        at = token.end()
        depth += (token[1] in (b"{", b"[")) - (token[1] in (b"}", b"]"))
        if depth <= 0:
            break
    else:
        return len(document)
    return at


def _skip_blanks(document: bytes, at: int) -> int:
    while document[at : at + 1] in (b" ", b"\t", b"\r", b"\n", b",", b":"):
        at += 1
    return at
