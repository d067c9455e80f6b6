"""Reads Spark's checkpoints: the last batch, its offsets, its watermark.

Reads the text files under `offsets/` and `commits/`; writes nothing. Does not handle: Spark itself.
Only committed offsets count as read: planned but unfinished offsets do not.

    offsets/7:  v1
                {"batchWatermarkMs":1767225600000,"batchTimestampMs":…,"conf":{…}}
                {"clicks":{"0":120,"1":98},"clicks@id":{"0":6148914691236517205}}
"""

from pathlib import Path
from typing import Final

import msgspec

from braidlog.spark.source.positions import IDENTITY

Offsets = dict[str, dict[int, int]]
"""Topic → partition → the next offset to read."""

_NONE: Final = "-"


class Position(msgspec.Struct, frozen=True):
    """The position of a query. `batch` is -1 before its first."""

    batch: int = -1
    offsets: Offsets = {}
    watermark_ms: int = 0


class _Metadata(msgspec.Struct, frozen=True):
    batchWatermarkMs: int = 0  # noqa: N815 - Spark's name


def position(checkpoint: Path) -> Position:
    """Return the position of a checkpoint's query."""
    committed = _numbers(checkpoint / "commits")
    if not committed:
        return Position()
    batch = max(committed)
    planned = [number for number in _numbers(checkpoint / "offsets") if number <= batch]
    # Spark drops old files of both folders together; the newest committed batch keeps its offsets.
    if batch not in planned:
        return Position(batch)
    lines = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
    metadata = msgspec.json.decode(lines[1], type=_Metadata)
    offsets: Offsets = {}
    for line in lines[2:]:
        if line != _NONE:
            read = msgspec.json.decode(line, type=Offsets)
            offsets |= {topic: numbers for topic, numbers in read.items() if not topic.endswith(IDENTITY)}
    return Position(batch, offsets, metadata.batchWatermarkMs)


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
