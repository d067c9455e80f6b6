"""Is a key-value store what was written? Recovery says so, on a disk that keeps nothing; remains.py tells what is lost.

Knows: where the store of a data folder is, whose it is. Refuses to know: how findings are shown, how a store is made whole.
Invariant: sound is what an opening takes whole, by the very code of an opening. Changes nothing and takes no lock: of a store in
use the end may be seen half-written.
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
    """The node whose data folder this is; refused if it holds no store."""
    layout = Layout(disk, path)
    if not disk.exists(join(path, STORE_FOLDER)):
        raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{path} has no key-value store: no folder {STORE_FOLDER!r} in it")
    if layout.is_identity_lost:
        raise StorageFault("nobody knows whose folder it is; first: braid log repair", path)
    return bytes.fromhex(layout.folder_id)


def open_dry(disk: Disk, path: str, node: bytes) -> LocalStore:
    """The store as an opening would show it; a `StorageFault` if it would refuse it, or serve only a part."""
    settings = KeyValueSettings(memory_bytes_max=0)
    store = LocalStore(DryDisk(disk), join(path, STORE_FOLDER), node, settings, now_ms=0)
    if store.damages:
        raise StorageFault("; ".join(store.damages), store.folder)
    return store


def verify_store(disk: Disk, path: str, node: bytes) -> StoreReport:
    """Check the store of the data folder `path`."""
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
        StoreFinding(severity=Severity.NOTE, file=STORE_FOLDER, why=note, meaning="an opening puts it right")
        for note in store.notes
    ]
    return StoreReport(
        folder=folder, sound=True, refused=None, keys=len(store.keyspace), sequence=store.sequence, findings=notes
    )
