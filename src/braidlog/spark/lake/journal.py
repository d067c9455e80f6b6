"""The journal of a plain folder of Parquet files: which files are the table, and which batches made it so.

Knows: entries, states, their files and how they become durable. Refuses to know: Parquet, Spark, renames of data files.
Invariants: an entry is there whole or not at all, and is decided once its name is durable; entries are numbered without gaps;
a state holds everything that the entries up to its number say, and is durable before any of them is removed.

```
<table>/_braidlog/
├─ lock                                    held by whoever changes the table
├─ 00000000000000000064.state              everything up to entry 64
├─ 00000000000000000065.entry              one change: sink and batch, files that came, files that went
└─ .00000000000000000066.entry.new         never finished: removed by the next who holds the lock
```

Each file is a line `braidlog-lake 1 <CRC-32C of the rest, 8 hexadecimal digits>` and then JSON.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from braidlog.codec.crc import crc32c
from braidlog.model.errors import StorageFault
from braidlog.spark.lake.written import DataFile
from braidlog.storage.files import Disk, join

FOLDER = "_braidlog"
ENTRIES_MAX = 64
"""After so many entries a state is written, and they are removed."""
FILE_BYTES_MAX = 1 << 30
_MAGIC = "braidlog-lake 1"
_ENTRY, _STATE, _NEW = ".entry", ".state", ".new"

M = TypeVar("M", "Entry", "State")


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of the table."""

    sequence: int
    at_ms: int
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    sink: str | None = None
    batch: int | None = None
    run: str | None = None
    schema: bytes | None = None
    """Arrow's own form of the table's schema, where the change changed it."""
    partition_by: tuple[str, ...] | None = None


class State(msgspec.Struct):
    """What all entries so far amount to."""

    sequence: int = 0
    sinks: dict[str, int] = {}
    """The last batch of each sink."""
    runs: dict[str, str] = {}
    """The query that numbered it, where that is not the sink's name."""
    files: dict[str, DataFile] = {}
    schema: bytes | None = None
    partition_by: tuple[str, ...] | None = None

    def apply(self, entry: Entry) -> None:
        self.sequence = entry.sequence
        for path in entry.remove:
            self.files.pop(path, None)
        self.files.update((file.path, file) for file in entry.add)
        if entry.sink is not None and entry.batch is not None:
            self.sinks[entry.sink] = entry.batch
            if entry.run is not None:
                self.runs[entry.sink] = entry.run
        if entry.schema is not None:
            self.schema = entry.schema
        if entry.partition_by is not None:
            self.partition_by = entry.partition_by


class Journal:
    """The journal as one holder of the lock sees it. Nobody else changes it meanwhile."""

    def __init__(self, disk: Disk, table: str) -> None:
        self._disk = disk
        self.folder = join(table, FOLDER)
        self.state = State()
        self.last: Entry | None = None
        """The newest entry: the only one whose files may not all have their names yet."""

    def open(self) -> None:
        """Read it. What is read is durable: an entry that a killed process left in the page cache must not be acted upon
        and then vanish with the power."""
        self._disk.sync_folder(self.folder)
        names = self._disk.names(self.folder)
        states = [name for name in names if name.endswith(_STATE) and not name.startswith(".")]
        self.state = self._read(states[-1], State) if states else State()
        for name in names:
            if name.startswith(".") and name.endswith(_NEW):
                self._disk.remove(join(self.folder, name))
        for name in self._newer(names):
            entry = self._read(name, Entry)
            if entry.sequence != self.state.sequence + 1 or name != _name(entry.sequence, _ENTRY):
                raise StorageFault(f"entry {self.state.sequence + 1} of the journal is not there", self.folder)
            self.state.apply(entry)
            self.last = entry

    def write(self, entry: Entry) -> None:
        """Decide: when this returns, the change is part of the table whatever happens."""
        assert entry.sequence == self.state.sequence + 1
        self._write(_name(entry.sequence, _ENTRY), entry)
        self.state.apply(entry)
        self.last = entry

    def maybe_fold(self) -> bool:
        """Write a state in the place of many entries. Only when the files of all of them have their names."""
        names = self._disk.names(self.folder)
        if sum(name.endswith(_ENTRY) for name in names) < ENTRIES_MAX:
            return False
        self._write(_name(self.state.sequence, _STATE), self.state)
        keep = _name(self.state.sequence, _STATE)
        for name in names:
            if name.endswith((_ENTRY, _STATE)) and not name.startswith(".") and name != keep:
                self._disk.remove(join(self.folder, name))
        return True

    def _newer(self, names: list[str]) -> Iterator[str]:
        first = _name(self.state.sequence + 1, _ENTRY)
        return (name for name in names if name.endswith(_ENTRY) and not name.startswith(".") and name >= first)

    def _write(self, name: str, content: Entry | State) -> None:
        body = msgspec.json.encode(content)
        new = join(self.folder, f".{name}{_NEW}")
        if self._disk.exists(new):
            self._disk.remove(new)
        file = self._disk.create(new)
        try:
            file.append([f"{_MAGIC} {crc32c(body):08x}\n".encode(), body], 0)
            file.sync()
        finally:
            file.close()
        self._disk.rename(new, join(self.folder, name))
        # Sync the folder too, or a crash can keep the bytes and lose the name.
        self._disk.sync_folder(self.folder)

    def _read(self, name: str, kind: type[M]) -> M:
        path = join(self.folder, name)
        file = self._disk.open(path, writable=False)
        try:
            size = file.size()
            if size > FILE_BYTES_MAX:
                raise StorageFault(f"a journal's file of {size} bytes is none of ours", path)
            head, _, body = file.read_at(size, 0).partition(b"\n")
        finally:
            file.close()
        if head != f"{_MAGIC} {crc32c(body):08x}".encode():
            raise StorageFault("its first line does not fit the rest: damaged, or not written by this version", path)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise StorageFault(f"its content is not a journal's: {error}", path) from error


def _name(sequence: int, ending: str) -> str:
    return f"{sequence:020d}{ending}"
