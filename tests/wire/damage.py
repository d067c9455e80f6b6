"""Valid frames with damage, and vectors spelled in hex and text: what the tests of several dialects share."""

import random
import re
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(r"`([^`]*)`|([0-9A-F]{2})(?![^\s])|#.*|(\S+)")


def damaged(chance: random.Random, frames: Sequence[bytes], runs: int, header_bytes: int) -> Iterator[bytearray]:
    """Frames with one to four changes behind their first bytes: a byte, some left out, some put in, the end of another."""
    for _ in range(runs):
        data = bytearray(chance.choice(frames))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(header_bytes, max(len(data), header_bytes + 1))
            match chance.randrange(4):
                case 0:
                    data[at : at + 1] = bytes((chance.randrange(256),))
                case 1:
                    data[at : at + chance.randint(1, 8)] = b""
                case 2:
                    data[at:at] = chance.randbytes(chance.randint(1, 8))
                case _:
                    other = chance.choice(frames)
                    data[at:] = other[chance.randrange(len(other)) :]
        yield data


def spelled(line: str) -> bytes:
    """The bytes of a line of hex pairs, `texts in backticks` and # comments."""
    data = bytearray()
    for match in _TOKEN.finditer(line):
        text, pair, wrong = match.groups()
        if wrong is not None:
            raise ValueError(f"{wrong!r} is neither a byte nor a text")
        if text is not None:
            data += text.encode("utf-8")
        elif pair is not None:
            data.append(int(pair, 16))
    return bytes(data)
