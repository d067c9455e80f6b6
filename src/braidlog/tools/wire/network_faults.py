"""What a network may do to a stream without breaking it: cut it anywhere, and take its time.

Knows: how to cut. Refuses to know: sockets.
Invariant: the pieces, put together, are the bytes; the same seed cuts the same bytes in the same places.
"""

import random
from collections.abc import Iterator
from typing import Final

RANDOM: Final = "random"
_PIECE_BYTES_MAX: Final = 64


class Splitter:
    """`how`: "" not at all, a number of bytes, or "random" (1 to 64 bytes each)."""

    def __init__(self, how: str = "", seed: int = 0) -> None:
        if how and how != RANDOM and not (how.isdigit() and int(how) > 0):
            raise ValueError(f"{how!r} is neither a number of bytes nor {RANDOM!r}")
        self._how = how
        self._random = random.Random(seed)  # noqa: S311 - faults, not secrets

    def pieces(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            size = len(data)
            if self._how:
                size = self._random.randint(1, _PIECE_BYTES_MAX) if self._how == RANDOM else int(self._how)
            yield data[at : at + size]
            at += size
