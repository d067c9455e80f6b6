"""The log of one partition: append, read, sync, truncate.

    log = PartitionLog(disk, folder, identity, settings, pool)   # partition_log.py
    log.append(batch, now_ms=now_ms)
    log.sync()

`log_reader.py` finds batches, `durability.py` syncs them; `storage/group_commit.py` shares a sync among callers.
"""
