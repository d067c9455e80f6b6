"""Repair a damaged key-value store: write the readable data to a snapshot, and quarantine the old files.

A file is removed only when its replacement and its quarantined copy are durable. After an interrupted repair, opening
either fails or finds an intact store, and the repair can be run again.

    report      <data>/quarantine/kv-<ms>/report.json: the findings
    snapshot    kv/<n>.snapshot, durable, with a number above all used ones
    log         kv/<n + 1>.wal, empty; the manifest names it
    quarantine  the other files are copied to <data>/quarantine/kv-<ms>/, and removed
"""

import msgspec

from braidlog.kv.engine.keyspace import Image
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.wal import snapshot as snapshots
from braidlog.kv.wal import wal as logs
from braidlog.kv.wal.local_store import LocalStore
from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, join, write_whole
from braidlog.storage.two_copy_file import TwoCopyFile
from braidlog.tools.findings import Severity
from braidlog.tools.keyvalue.findings import StoreFinding, StoreReport
from braidlog.tools.keyvalue.inspect import STORE_FOLDER, open_dry, verify_store
from braidlog.tools.keyvalue.remains import Remains
from braidlog.tools.repair.quarantine import copy_file

NUMBERS_SKIPPED = 2**32
"""Gap in the numbering: the number of lost mutations is unknown, and numbers in the change feed must not be reused."""


class StoreRepairPlan(msgspec.Struct, kw_only=True):
    """Plan of a repair."""

    folder: str
    needed: bool
    keys_kept: int
    findings: list[StoreFinding]
    quarantined: list[str]


class StoreRepairReport(StoreRepairPlan, kw_only=True):
    """Result of a repair, with a verification afterwards."""

    quarantine: str
    verified: StoreReport


class StoreRepair:
    """Repairs a store: `plan` shows what `run` does. Only `run` needs the folder's lock."""

    def __init__(self, disk: Disk, path: str, node: bytes) -> None:
        self._disk = disk
        self._path = path
        self._folder = join(path, STORE_FOLDER)
        self._node = node
        self._remains: Remains | None = None

    def plan(self) -> StoreRepairPlan:
        self._remains = None
        try:
            keys, findings = len(open_dry(self._disk, self._path, self._node).keyspace), []
        except StorageFault:
            self._remains = Remains(self._disk, self._folder, self._node)
            keys, findings = len(self._remains.keyspace), self._remains.findings
        needed = self._remains is not None
        names = [name for name in self._disk.names(self._folder) if needed and not name.startswith(_MANIFEST)]
        return StoreRepairPlan(folder=self._folder, needed=needed, keys_kept=keys, findings=findings, quarantined=names)

    def run(self, now_ms: int) -> StoreRepairReport:
        """Repair. Plans again under the lock, since the confirmed plan may have been made without it."""
        lock = self._disk.lock(join(self._path, "LOCK"))
        try:
            plan = self.plan()
            quarantine = self._free_name(now_ms) if self._remains is not None else ""
            if self._remains is not None:
                self._keep_report(quarantine, plan)
                self._write(self._remains, now_ms)
                self._set_aside(quarantine, plan.quarantined)
                settings = KeyValueSettings(memory_bytes_max=0)
                LocalStore(self._disk, self._folder, self._node, settings, now_ms=now_ms).close()
            verified = verify_store(self._disk, self._path, self._node)
        finally:
            lock.release()
        return StoreRepairReport(**msgspec.structs.asdict(plan), quarantine=quarantine, verified=verified)

    def _free_name(self, now_ms: int) -> str:
        """Return an unused folder name."""
        while self._disk.exists(path := join(self._path, "quarantine", f"kv-{now_ms}")):
            now_ms += 1
        return path

    def _keep_report(self, quarantine: str, plan: StoreRepairPlan) -> None:
        above = join(self._path, "quarantine")
        self._disk.make_folder(above)
        self._disk.sync_folder(self._path)
        self._disk.make_folder(quarantine)
        self._disk.sync_folder(above)
        text = msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"
        write_whole(self._disk, join(quarantine, "report.json"), text)
        self._disk.sync_folder(quarantine)

    def _write(self, remains: Remains, now_ms: int) -> None:
        names = [name.partition(".")[0] for name in self._disk.names(self._folder)]
        highest = max([remains.sequence, *(int(name) for name in names if name.isdigit())])
        is_damaged = any(finding.severity is Severity.DAMAGE for finding in remains.findings)
        sequence = highest + (NUMBERS_SKIPPED if is_damaged else 1)
        wall_ms = max(remains.wall_ms + 1, now_ms)  # after every used timestamp
        writer = snapshots.SnapshotWriter(
            self._disk, self._folder, snapshots.SnapshotHead(self._node, sequence, wall_ms, 0, now_ms)
        )
        for block in snapshots.slices(Image(remains.keyspace.data, remains.keyspace.deadlines)):
            writer.write(block)
        writer.seal()
        writer.publish()
        head = logs.WalHead(self._node, sequence + 1, wall_ms, 0, now_ms)
        logs.create_wal(self._disk, self._folder, head).close()
        manifest = TwoCopyFile(self._disk, self._folder, logs.MANIFEST_STEM, logs.MANIFEST_MAGIC)
        manifest.load()
        logs.save_manifest(manifest, logs.Manifest(self._node.hex(), head.base))

    def _set_aside(self, quarantine: str, names: list[str]) -> None:
        """Copy files durably, then remove them: after a crash, a renamed file might be in neither folder."""
        for name in names:
            copy_file(self._disk, join(self._folder, name), join(quarantine, name))
        self._disk.sync_folder(quarantine)
        for name in names:
            self._disk.remove(join(self._folder, name))
        self._disk.sync_folder(self._folder)


_MANIFEST = f"{logs.MANIFEST_STEM}."
