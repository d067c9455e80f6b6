"""Verify a key-value store: open it on a disk that discards writes; `remains.py` lists lost data.

A store is intact if the code of a normal opening accepts all of it. Changes nothing and takes no lock: the end of a store
in use may be incomplete.
"""

import shlex

from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.wal.local_store import LocalStore
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.files import Disk, join
from braidlog.tools.findings import Severity
from braidlog.tools.keyvalue.dry_disk import DryDisk
from braidlog.tools.keyvalue.findings import StoreFinding, StoreReport
from braidlog.tools.keyvalue.remains import Remains
from braidlog.tools.layout import Layout

STORE_FOLDER = "kv"


def node_of(disk: Disk, path: str) -> bytes:
    """Return the node of a data folder. Raises if it has no store."""
    layout = Layout(disk, path)
    if not disk.exists(join(path, STORE_FOLDER)):
        raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{path} has no key-value store: missing folder {STORE_FOLDER!r}")
    if layout.is_identity_lost:
        raise StorageFault("the folder has lost its identity; run `braid log repair` first", path)
    return bytes.fromhex(layout.folder_id)


def open_dry(disk: Disk, path: str, node: bytes) -> LocalStore:
    """Open the store without writing. Raises `StorageFault` if opening would fail, or serve only a part."""
    settings = KeyValueSettings(memory_bytes_max=0)
    store = LocalStore(DryDisk(disk), join(path, STORE_FOLDER), node, settings, now_ms=0)
    if store.damages:
        raise StorageFault("; ".join(store.damages), store.folder)
    return store


def verify_store(disk: Disk, path: str, node: bytes) -> StoreReport:
    """Verify the store of the data folder `path`."""
    folder = join(path, STORE_FOLDER)
    try:
        store = open_dry(disk, path, node)
    except StorageFault as fault:
        remains = Remains(disk, folder, node)
        return StoreReport(
            folder=folder,
            sound=False,
            refused=str(fault),
            keys=len(remains.keyspace),
            sequence=remains.sequence,
            findings=remains.findings,
            next_command=f"braid kv repair --dry-run {shlex.quote(path)}",
        )
    notes = [
        StoreFinding(severity=Severity.NOTE, file=STORE_FOLDER, why=note, meaning="opening repairs it")
        for note in store.notes
    ]
    return StoreReport(
        folder=folder, sound=True, refused=None, keys=len(store.keyspace), sequence=store.sequence, findings=notes
    )
