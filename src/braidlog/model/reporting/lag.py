"""The one definition of a group's lag in a partition, for command line, console, metrics and client."""

UNKNOWN_END = -1
"""The end offset of a partition without a local replica: only another node knows it."""


def lag_of(committed: int | None, start: int, end: int) -> int:
    """Return the records between a group's committed offset and the end. Without a valid commit the group starts at
    the partition's start.
    """
    return max(end - max(start if committed is None else committed, start), 0)
