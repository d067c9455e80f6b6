"""The log of one partition: append, read, sync, truncate.

    with PartitionLog.open(folder, disk, settings) as log:   # partition_log.py
        log.append(batch)
        log.sync()

`log_reader.py` finds batches, `durability.py` syncs them; `storage/group_commit.py` shares a sync among callers.
"""
