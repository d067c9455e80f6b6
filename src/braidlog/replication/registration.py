"""Whether a node that starts still has all that it once promised: whether it is whole, for one partition.

A promise outlives the process in the page cache, and the machine only on the disk.
"""

from collections.abc import Container

import msgspec


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a node, as it registers."""

    boot_id: str
    """Changes when the machine starts, not when the process does."""
    folder_id: str
    remembers: int = 0
    """The last incarnation that its folder knows of: less than the metadata's if it is a copy or a backup."""
    stopped_cleanly: bool = False
    start_id: str = ""
    """Of this start and no other, written into the folder before the node asks to be registered under it."""


class Registration(msgspec.Struct, frozen=True):
    """A life with the incarnation that the metadata gave it."""

    incarnation: int
    life: Life


def remembered(before: Registration | None, known: int, start_ids: Container[str]) -> int:
    """The last incarnation that a folder knows of: the one it was told of, or one that it asked for and died before it heard.

    Else a node that dies between the two would come back as if its folder were a copy, and count for nothing.
    """
    return before.incarnation if before is not None and before.life.start_id in start_ids else known


def is_whole(before: Registration | None, now: Life, *, flush_on_ack: bool, is_damaged: bool) -> bool:
    """`flush_on_ack` as it was when the node last registered; `is_damaged` of this partition's copy, found when it was opened."""
    if before is None or is_damaged or not is_same_folder(before, now):
        return False
    return now.stopped_cleanly or flush_on_ack or is_same_boot(before, now)


def is_same_folder(before: Registration, now: Life) -> bool:
    return now.folder_id == before.life.folder_id and now.remembers == before.incarnation


def is_same_boot(before: Registration, now: Life) -> bool:
    return now.boot_id == before.life.boot_id
