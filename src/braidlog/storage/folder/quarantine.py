"""What was put out of the way in a data folder, and is removed by a person alone: damaged copies, topics of no metadata.

Knows: their names (`storage/recovery/log_reset.py`, `data_folder.py`). Refuses to know: what is in them.
Invariant: changes nothing, and reads nothing but names; may run beside a node.
"""

from collections.abc import Iterator
from typing import NamedTuple

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, join
from braidlog.storage.folder.data_folder import STRAY
from braidlog.storage.segment.segment_files import DAMAGED

KEYS = "kv"
"""The folder of a lone node's store of keys."""


class Quarantined(NamedTuple):
    """Paths in the folder: of partitions that have a damaged copy in or beside them (and of the store of keys), and of topics."""

    damaged: list[str]
    strays: list[str]


def find_quarantined(disk: Disk, path: str) -> Quarantined:
    found = Quarantined([KEYS] if any(name.endswith(DAMAGED) for name in _names(disk, join(path, KEYS))) else [], [])
    for topic in _names(disk, join(path, "topics")):
        place = f"topics/{topic}"
        if topic.endswith(STRAY):
            found.strays.append(place)
        elif topic.isdigit():
            found.damaged.extend(sorted({f"{place}/{each}" for each in _damaged(disk, join(path, place))}))
    return found


def _damaged(disk: Disk, topic: str) -> Iterator[str]:
    """The partitions of a topic."""
    for name in _names(disk, topic):
        number, _, rest = name.partition(".")
        if not number.isdigit():
            continue
        if rest.endswith(DAMAGED[1:]) or any(each.endswith(DAMAGED) for each in _names(disk, join(topic, name))):
            yield number


def _names(disk: Disk, folder: str) -> list[str]:
    """None of what is gone by now, or is no folder."""
    try:
        return disk.names(folder) if disk.is_folder(folder) else []
    except StorageFault:
        return []
