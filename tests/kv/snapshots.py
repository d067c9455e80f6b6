"""Snapshots of a store that nobody else uses meanwhile."""

import contextlib

from braidlog.kv.wal import snapshot as snapshots
from braidlog.kv.wal.local_store import LocalStore
from braidlog.model.errors import StorageFault


def write_snapshot(store: LocalStore, now_ms: int) -> snapshots.SnapshotHead:
    """Take a snapshot in one go: the server does the same in slices."""
    store.wal.sync(upto=store.wal.request_roll(now_ms))
    taking = store.begin_snapshot(now_ms)
    size = None
    try:
        writer = store.writer(taking.head)
        try:
            for block in snapshots.slices(taking.image):
                writer.write(block)
            writer.seal()
            store.wal.sync(upto=taking.head.sequence + 1)
            writer.publish()
        except BaseException:
            with contextlib.suppress(StorageFault):
                writer.abandon()
            raise
        size = writer.size
    finally:
        store.end_snapshot(taking, size)
        while store.keyspace.settle(snapshots.SLICE_KEYS):
            pass
    store.remove_older()
    return taking.head
