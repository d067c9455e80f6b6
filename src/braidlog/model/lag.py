"""How far a group is behind in a partition: the one definition, for command line, console, metrics and client."""

UNKNOWN_END = -1
"""The end of a partition that has no replica on the node that tells a group's lag: another node knows it."""


def lag_of(committed: int | None, start: int, end: int) -> int:
    """Records between what a group has committed and the end; without a commit, or with one of records that are gone, it would
    begin at the partition's start."""
    return max(end - max(start if committed is None else committed, start), 0)
