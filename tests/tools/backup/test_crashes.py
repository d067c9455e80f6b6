"""Power is lost at any moment of a back-up or a restore: there is a whole one, or none, and the next attempt succeeds."""

from random import Random

import pytest

from braidlog import BrokerError, Log, NewRecord, StorageFault
from braidlog.model.clock import SystemClock
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.folder.folder_snapshot import SnapshotFile
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk
from braidlog.tools.backup.copying import create_backup
from braidlog.tools.backup.manifest import Manifest
from braidlog.tools.backup.place import FolderPlace
from braidlog.tools.backup.restoring import restore_backup, verify_backup
from braidlog.tools.backup.store import BackupStore

DATA, KEPT, MADE = "/data", "/kept", "/made"
VALUES = [b"first", b"second"]
STATES = 6
"""Of what a crash may leave at one moment, tried."""


def filled() -> SimulatedDisk:
    disk = SimulatedDisk()
    with Log(DATA, disk=disk, clock=ManualClock()) as log:
        log.create_topic("a").append_many([NewRecord(value) for value in VALUES])
    return disk.after_kill()


def back_up(disk: SimulatedDisk) -> Manifest:
    names = [path.removeprefix(f"{DATA}/") for path in disk.files() if path.startswith(f"{DATA}/")]
    files = [
        SnapshotFile(name, len(content), 1, content)
        if name.endswith((".a", ".b"))
        else SnapshotFile(name, len(content), 1, kept=name)
        for name, content in ((name, disk.content(f"{DATA}/{name}")) for name in names if not name.endswith("LOCK"))
    ]
    return create_backup(disk, BackupStore(FolderPlace(disk, KEPT)), DATA, files, version="0", now_ms=1_000)


def restore(disk: SimulatedDisk) -> None:
    store = BackupStore(FolderPlace(disk, KEPT))
    restore_backup(disk, store, store.load(None), MADE)


def is_refused(disk: SimulatedDisk) -> bool:
    """Whether a node makes nothing new of what a restore has left."""
    try:
        DataFolder(disk, MADE, SystemClock()).release()
    except (BrokerError, StorageFault):
        return True
    return False


def test_a_backup_is_whole_or_none() -> None:
    source = filled()  # one folder: the names of pieces, and so the calls that write them, follow from its random id
    counted = source.after_kill()
    before = len(counted.operations)
    back_up(counted)
    for moment in range(1, len(counted.operations) - before + 1):
        dying = source.after_kill()
        dying.stop_at = len(dying.operations) + moment
        with pytest.raises(Crash):
            back_up(dying)
        for label, state in dying.crash_states(limit=STATES, rng=Random(moment)):
            store = BackupStore(FolderPlace(state, KEPT))
            for name in store.finished():
                assert verify_backup(store, store.load(name)).sound, f"stopped at {moment}, {label}"
            again = back_up(state)
            assert verify_backup(store, again).sound, f"stopped at {moment}, {label}"


def test_a_restored_folder_is_whole_or_refused() -> None:
    kept = filled()
    back_up(kept)
    counted = kept.after_kill()
    before = len(counted.operations)
    restore(counted)
    whole = 0
    for moment in range(1, len(counted.operations) - before + 1):
        dying = kept.after_kill()
        dying.stop_at = len(dying.operations) + moment
        with pytest.raises(Crash):
            restore(dying)
        for label, state in dying.crash_states(limit=STATES, rng=Random(moment)):
            if state.exists(f"{MADE}/folder.a") or state.exists(f"{MADE}/folder.b"):
                whole += 1
                with Log(MADE, disk=state, clock=ManualClock()) as log:
                    found = [record.value for record in log.topic("a").iterate(0)]
                assert found == VALUES, f"stopped at {moment}, {label}"
            elif state.is_folder(MADE) and {*state.names(MADE)} - {"LOCK"}:
                assert is_refused(state), f"stopped at {moment}, {label}"
    assert whole
