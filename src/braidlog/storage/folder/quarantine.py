"""List the quarantined files of a data folder: damaged copies, and topics without metadata.

Only an operator removes them.

`storage/recovery/log_reset.py` and `data_folder.py` choose their names. Reads names only and changes nothing, so it
can run beside a node.
"""

from collections.abc import Iterator
from typing import NamedTuple

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, join
from braidlog.storage.folder.data_folder import STRAY
from braidlog.storage.segment.segment_files import DAMAGED

KEYS = "kv"
"""The folder of the key-value store of a single node."""


class Quarantined(NamedTuple):
    """Paths in the folder: partitions (and the key-value store) with a damaged copy, and stray topics."""

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
    """Yield the numbers of the partitions that have a damaged copy."""
    for name in _names(disk, topic):
        number, _, rest = name.partition(".")
        if not number.isdigit():
            continue
        if rest.endswith(DAMAGED[1:]) or any(each.endswith(DAMAGED) for each in _names(disk, join(topic, name))):
            yield number


def _names(disk: Disk, folder: str) -> list[str]:
    """List a folder; empty if it does not exist or is not a folder."""
    try:
        return disk.names(folder) if disk.is_folder(folder) else []
    except StorageFault:
        return []
