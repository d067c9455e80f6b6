"""How much of what is about to be read may be checked in one go.

A checksum takes a nanosecond a byte, and each batch its steps in Python: so a batch counts as many bytes.
"""

from typing import Final

BATCH_COST: Final = 4096
"""What a batch costs beside its bytes."""
COST_MAX: Final = 32 * 1024 * 1024
"""Some thirty milliseconds: 8,000 small batches, or 32 MiB of large ones."""


class CheckBudget:
    """What is left for checks. Whoever finds it spent leaves the rest for the next request, which finds this part checked."""

    __slots__ = ("left",)

    def __init__(self, cost_max: int = COST_MAX) -> None:
        self.left = cost_max

    def spend(self, size: int, batches: int) -> None:
        self.left -= size + batches * BATCH_COST

    @property
    def is_spent(self) -> bool:
        return self.left <= 0
