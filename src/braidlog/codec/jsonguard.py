"""Refuse JSON that is small on the wire and large in memory, before it becomes objects.

Knows: how to count what a document would make. Refuses to know: what it means.
A 4 MB frame of `[[],[],…]` became 101 MB of objects; counting its brackets and commas first takes milliseconds.
"""

from braidlog.codec.errors import ProtocolError

TOKENS_MAX = 200_000
DEPTH_MAX = 32


def check_json(data: bytes, *, tokens_max: int = TOKENS_MAX) -> None:
    """Raise if the document has too many values or is nested too deep. Commas inside strings count too: a bound, not a parse."""
    opened = data.count(b"[") + data.count(b"{")
    tokens = opened + data.count(b",")
    if tokens > tokens_max:
        raise ProtocolError(f"JSON of {tokens} values is announced, {tokens_max} is the limit")
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
