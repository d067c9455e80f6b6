"""Decides whether a starting node still holds everything it acknowledged for one partition.

Acknowledged data in the page cache survives a process crash; only synced data survives a machine crash.
"""

from collections.abc import Container

import msgspec


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a node, as it registers."""

    boot_id: str
    """Changes when the machine starts, not when the process does."""
    folder_id: str
    remembers: int = 0
    """The last incarnation recorded in the node's folder; lower than the metadata's if the folder is a copy or a
    backup.
    """
    stopped_cleanly: bool = False
    start_id: str = ""
    """Unique to this start; written into the folder before the node registers under it."""


class Registration(msgspec.Struct, frozen=True):
    """A start with the incarnation that the metadata assigned to it."""

    incarnation: int
    life: Life


def last_known_incarnation(before: Registration | None, known: int, start_ids: Container[str]) -> int:
    """The last incarnation that a folder knows: a confirmed one, or one requested just before a crash.

    Without the second case, a node that crashes between request and confirmation would look like a copied folder and
    lose its in-sync state.
    """
    return before.incarnation if before is not None and before.life.start_id in start_ids else known


def is_whole(before: Registration | None, now: Life, *, flush_on_ack: bool, is_damaged: bool) -> bool:
    """Whether the copy is complete. `flush_on_ack` is the value at the last registration; `is_damaged` is the result
    of opening this copy.
    """
    if before is None or is_damaged or not is_same_folder(before, now):
        return False
    return now.stopped_cleanly or flush_on_ack or is_same_boot(before, now)


def is_same_folder(before: Registration, now: Life) -> bool:
    return now.folder_id == before.life.folder_id and now.remembers == before.incarnation


def is_same_boot(before: Registration, now: Life) -> bool:
    return now.boot_id == before.life.boot_id
