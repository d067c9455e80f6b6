"""Chooses the files that a compaction merges.

A group has at least two files of one partition, each smaller than the target. Does not handle: file contents.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")

_NEARLY = 0.75
"""A file of at least this share of the target is not rewritten."""


def groups_to_rewrite(
    files: Iterable[T], partition_of: Callable[[T], Hashable], size_of: Callable[[T], int], target_file_bytes: int
) -> list[list[T]]:
    """Return groups of about the target size, in the order of the files."""
    by_partition: dict[Hashable, list[T]] = {}
    for file in files:
        if size_of(file) < target_file_bytes * _NEARLY:
            by_partition.setdefault(partition_of(file), []).append(file)
    groups: list[list[T]] = []
    for small in by_partition.values():
        group: list[T] = []
        total = 0
        for file in small:
            if group and total + size_of(file) > target_file_bytes:
                groups.append(group)
                group, total = [], 0
            group.append(file)
            total += size_of(file)
        groups.append(group)
    return [group for group in groups if len(group) > 1]
