"""Split a stream of bytes as a network may do. The same seed splits the same bytes at the same positions."""

import random
from collections.abc import Iterator
from typing import Final

RANDOM: Final = "random"
_PIECE_BYTES_MAX: Final = 64


class Splitter:
    """Splits bytes. `how`: "" not at all, a number of bytes, or "random" (1 to 64 bytes each)."""

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
