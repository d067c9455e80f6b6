"""Read what remains of a damaged store: every intact block of its snapshot, every intact entry of its log.

Changes nothing. Bytes with an invalid checksum are used only to name affected keys.
"""

import struct
from typing import NamedTuple

import msgspec

from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.values import KINDS_BY_CODE, HashValue, ListValue
from braidlog.kv.wal import snapshot as snapshots
from braidlog.kv.wal import wal as logs
from braidlog.kv.wal.file_header import number_in
from braidlog.kv.wal.wal_entries import BadEntry, Entry, following_entry, key_of_entry, walk_entries
from braidlog.model.errors import ProtocolError, StorageFault
from braidlog.storage.files import Disk, File, join, read_whole
from braidlog.storage.two_copy_file import TwoCopyFile
from braidlog.tools.findings import Severity
from braidlog.tools.keyvalue.findings import StoreFinding, keys_told, missing


class _Run(NamedTuple):
    """Consecutive entries, and the invalid bytes after them."""

    entries: list[Entry]
    position: int
    """Start of the damage after the entries ..."""
    end: int
    """... and its end; equals the start without damage."""
    is_torn: bool
    """The bytes were never durable."""


class _Anchor(NamedTuple):
    """The number of the entry that ends at `position` (None: of the last entry)."""

    position: int | None
    number: int


class Remains:
    """The readable keys of a store, and findings about the rest."""

    def __init__(self, disk: Disk, folder: str, node: bytes) -> None:
        self._disk = disk
        self._folder = folder
        self._node = node
        self.keyspace = Keyspace()
        self.sequence = 0
        """Number of the last known mutation."""
        self.wall_ms = 0
        self.findings: list[StoreFinding] = []
        self._snapshot_upto = 0
        names = disk.names(folder)
        self._logs = [name for name in names if name.endswith(logs.SUFFIX)]
        self._snapshots = [name for name in names if name.endswith(snapshots.SUFFIX)]
        named = self._read_manifest()
        self._read_snapshot()
        self._read_logs(named)

    # -- the manifest ----------------------------------------------------------------------------------------

    def _read_manifest(self) -> int | None:
        """Return the first number of the newest log file, if the manifest is readable."""
        pair = TwoCopyFile(self._disk, self._folder, logs.MANIFEST_STEM, logs.MANIFEST_MAGIC)
        slots = pair.load()
        why = "; ".join(f"{name}: {fault}" for name, fault in pair.all_faults().items())
        if slots:
            try:
                manifest = msgspec.json.decode(slots[0].payload, type=logs.Manifest)
            except msgspec.MsgspecError as error:
                why = f"does not decode: {error}"
            else:
                if manifest.node != self._node.hex():
                    raise StorageFault(f"the store belongs to node {manifest.node}", self._folder)
                return manifest.wal_base
        self._fault(logs.MANIFEST_STEM, f"the manifest is lost: {why}", "it is rebuilt from the other files")
        return None

    # -- the snapshot ----------------------------------------------------------------------------------------

    def _read_snapshot(self) -> None:
        """Read the newest intact snapshot that the log continues; else the remains of the newest one."""
        log_from = number_in(self._logs[0]) if self._logs else None
        broken: list[tuple[str, str]] = []
        for name in reversed(self._snapshots):
            keyspace = Keyspace()
            try:
                head = snapshots.load_snapshot(self._disk, join(self._folder, name), keyspace.put)
            except StorageFault as fault:
                broken.append((name, str(fault)))
                continue
            if head.node != self._node or name != snapshots.snapshot_name(head.sequence):
                broken.append((name, f"the snapshot says it is {head.sequence} of node {head.node.hex()}"))
                continue
            if broken and (log_from is None or log_from > head.sequence + 1):
                break
            self.keyspace, self.wall_ms = keyspace, head.wall_ms
            self.sequence = self._snapshot_upto = head.sequence
            break
        if broken and not self._snapshot_upto and log_from != 1:
            self._read_broken(broken.pop(0)[0])
        for name, why in broken:
            self._fault(name, why, "an older snapshot and the log contain its keys")

    def _read_broken(self, name: str) -> None:
        """Read the intact blocks of a snapshot, whose name identifies it if its header is damaged."""
        self.sequence = self._snapshot_upto = number_in(name)
        file = self._disk.open(join(self._folder, name), writable=False)
        try:
            size, position, is_last = file.size(), snapshots.DATA_START, False
            while not is_last and position < size:
                try:
                    payload, position, is_last = snapshots.read_block(file, position, size)
                    for key, value, deadline in () if is_last else snapshots.keys_in(payload):
                        self.keyspace.put(key, value, deadline)
                except (ProtocolError, struct.error) as error:
                    start, (keys, position) = position, _behind_block(file, position, size)
                    self._lost_block(name, start, position, str(error), keys)
            if not is_last:
                self._lost_block(name, size, size, "the end is missing", [])
        finally:
            file.close()
        if not any(finding.file == name for finding in self.findings):
            self._fault(name, "the header or the end is damaged", "all keys can be read")

    def _lost_block(self, name: str, position: int, end: int, why: str, keys: list[bytes]) -> None:
        named = f"{len(keys)} keys are known" if keys else "the keys are unknown"
        self.findings.append(
            StoreFinding(
                severity=Severity.DAMAGE,
                file=name,
                position=position,
                end=end,
                why=why,
                meaning=f"the keys in these {end - position} bytes are lost, unless they changed later; {named}",
                mutations_lost=None,
                keys=keys_told(keys),
            )
        )

    # -- the log ---------------------------------------------------------------------------------------------

    def _read_logs(self, named: int | None) -> None:
        reached = 0
        for at, name in enumerate(self._logs):
            base = number_in(name)
            follower = number_in(self._logs[at + 1]) if at + 1 < len(self._logs) else None
            if follower is not None and follower <= self._snapshot_upto + 1:
                self._fault(name, "an older log file", "the snapshot contains all of it")
                continue
            if base > self.sequence + 1:
                self.findings.append(missing(name, self.sequence + 1, base - 1, "the log file before it is missing"))
            reached = self._read_log(name, base, follower)
            self.sequence = max(self.sequence, reached)
        if named is not None and (not self._logs or named > number_in(self._logs[-1])):
            self._lost_tail(logs.wal_name(named), "the last log file is missing")
        elif named is not None and named < number_in(self._logs[-1]):
            self._fault(
                logs.MANIFEST_STEM,
                f"the manifest names {logs.wal_name(named)}",
                "it is outdated: later files exist",
            )
        elif reached < self._snapshot_upto and self._logs:
            self._lost_tail(self._logs[-1], f"the log ends with mutation {reached}, before its snapshot's")

    def _lost_tail(self, name: str, why: str) -> None:
        self.findings.append(
            StoreFinding(
                severity=Severity.DAMAGE,
                file=name,
                why=why,
                meaning=f"mutations after {self.sequence}, if any, are lost",
                mutations_lost=None,
            )
        )

    def _read_log(self, name: str, base: int, follower: int | None) -> int:
        """Apply the entries of a log file; return the number of its last entry, even if that entry is lost."""
        path = join(self._folder, name)
        data = read_whole(self._disk, path)
        try:
            head = logs.unpack_wal_head(data)
        except ProtocolError as error:
            self._fault(name, f"the header is damaged: {error}", "the file name identifies it")
        else:
            if (head.node, head.base) != (self._node, base):
                why = f"the log file says it is {head.base} of node {head.node.hex()}"
                self.findings.append(
                    StoreFinding(severity=Severity.DAMAGE, file=name, why=why, meaning="it is ignored", end=len(data))
                )
                return base - 1
        mark = logs.unpack_mark(data) if len(data) >= logs.DATA_START else None
        file = self._disk.open(path, writable=False)
        try:
            runs = _runs(file, data, mark.position if mark is not None and follower is None else None)
        finally:
            file.close()
        anchor = None if mark is None else _Anchor(mark.position, mark.sequence)
        if follower is not None:
            anchor = _Anchor(None, follower - 1)
        return self._take(name, data, base, runs, anchor)

    def _take(self, name: str, data: bytes, base: int, runs: list[_Run], anchor: _Anchor | None) -> int:
        """Number the entries of a file, apply the new ones, and report the gaps."""
        last = base - 1
        for number, run in enumerate(runs):
            first, is_exact = _first_number(runs, number, last, anchor)
            if number:
                self._lost_entries(name, data, runs[number - 1], last + 1, first if is_exact else None)
            for sequence, entry in enumerate(run.entries, first):
                if sequence > self._snapshot_upto:
                    self._apply(name, entry)
            last = first + len(run.entries) - 1
        end = runs[-1]
        known = max(last, anchor.number) if anchor is not None else last
        if end.end > end.position and anchor is None and not any(data[end.position :]):
            self._in_doubt(name, end)
        elif end.end > end.position and not end.is_torn:
            self._lost_entries(name, data, end, last + 1, known + 1 if known > last else None)
        elif known > max(last, self._snapshot_upto):
            self.findings.append(
                missing(name, max(last, self._snapshot_upto) + 1, known, f"the file ends at byte {end.position}")
            )
        return known

    def _lost_entries(self, name: str, data: bytes, run: _Run, first: int, following: int | None) -> None:
        """Report lost entries after a run, [first, following) if known; entries in a snapshot are not lost."""
        count = None if following is None else max(following - max(first, self._snapshot_upto + 1), 0)
        told = "an unknown number of mutations is lost" if count is None else f"mutations lost: {count}"
        self.findings.append(
            StoreFinding(
                severity=Severity.FAULT if count == 0 else Severity.DAMAGE,
                file=name,
                position=run.position,
                end=run.end,
                why="no valid entries in these bytes",
                meaning="the snapshot contains these mutations; nothing is lost" if count == 0 else told,
                mutations_lost=count,
                keys=keys_told([key_of_entry(data, run.position)]) if count == 1 else [],
            )
        )

    def _in_doubt(self, name: str, run: _Run) -> None:
        """Report zeros after the last entry, which a kill leaves (storage/reserve.py), if the durability mark is damaged."""
        self.findings.append(
            StoreFinding(
                severity=Severity.DAMAGE,
                file=name,
                position=run.position,
                end=run.end,
                why="zeros follow the last entry, and the mark of the durable end is damaged",
                meaning="probably nothing was written here; if mutations were, they are lost",
                mutations_lost=None,
            )
        )

    def _apply(self, name: str, entry: Entry) -> None:
        self.wall_ms = max(self.wall_ms, entry.wall_ms)
        try:
            self.keyspace.apply(entry.op, entry.key, entry.value, entry.ttl_seconds, entry.wall_ms)
        except (StorageFault, ProtocolError, KeyError, ValueError, IndexError):
            held = self.keyspace.data.get(entry.key)
            if isinstance(held, ListValue | HashValue) and held.size <= _EMPTY_BYTES:
                self.keyspace.data.pop(entry.key)
                self.keyspace.deadlines.pop(entry.key, None)
            self.findings.append(
                StoreFinding(
                    severity=Severity.DAMAGE,
                    file=name,
                    end=entry.end,
                    position=entry.end,
                    why="an entry that depends on a lost entry",
                    meaning="it is dropped: its key keeps the previous value",
                    mutations_lost=1,
                    keys=keys_told([entry.key]),
                )
            )

    def _fault(self, file: str, why: str, meaning: str) -> None:
        self.findings.append(
            StoreFinding(severity=Severity.FAULT, file=file, why=why, meaning=f"{meaning}; nothing is lost")
        )


_EMPTY_BYTES = len(ListValue().write())


def _runs(file: File, data: bytes, durable_to: int | None) -> list[_Run]:
    """Return the entries of a file in runs. Invalid bytes after `durable_to` were never acknowledged."""
    runs, position, wall_ms = [], logs.DATA_START, 0
    while True:
        entries: list[Entry] = []
        try:
            for entry in walk_entries(file, position, len(data), wall_ms):
                entries.append(entry)
                position, wall_ms = entry.end, entry.wall_ms
        except BadEntry:
            is_torn = durable_to is not None and position >= durable_to
            behind = len(data) if is_torn else following_entry(data, position)
        else:
            is_torn, behind = False, position
        runs.append(_Run(entries, position, behind, is_torn))
        if behind >= len(data):  # a file may end within its header
            return runs
        position = behind


def _first_number(runs: list[_Run], at: int, last: int, anchor: _Anchor | None) -> tuple[int, bool]:
    """Return the number of a run's first entry, and whether it is exact; else entries before it are lost."""
    if at == 0:
        return last + 1, True
    if anchor is not None:
        run = runs[at]
        for index, entry in enumerate(run.entries):
            if entry.end == anchor.position:
                return max(last + 1, anchor.number - index), True
        if anchor.position is None and at == len(runs) - 1 and run.position == run.end:
            return max(last + 1, anchor.number - len(run.entries) + 1), True
    return last + 2, False


def _behind_block(file: File, position: int, size: int) -> tuple[list[bytes], int]:
    """Return the keys in a damaged block, and the start of the next block."""
    data = file.read_at(min(snapshots.BLOCK_BYTES_MAX, size - position), position)
    announced = position + 8 + int.from_bytes(data[:4], "big")
    keys: list[bytes] = []
    end = None
    at = 8
    while at + 15 < len(data):
        key_end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")
        value_end = key_end + 12 + int.from_bytes(data[key_end + 8 : key_end + 12], "big")
        if not 1 <= data[at] <= len(KINDS_BY_CODE) or value_end > len(data):
            break
        keys.append(data[at + 3 : key_end])
        at = value_end
        if _is_block(file, position + at, size):
            end = position + at
            break
    if end is None and _is_block(file, announced, size):
        end = announced
    return keys, size if end is None else end


def _is_block(file: File, position: int, size: int) -> bool:
    try:
        snapshots.read_block(file, position, size)
    except ProtocolError:
        return False
    return True
