"""The log of one partition: append, read, sync, truncate.

    with PartitionLog.open(folder, disk, settings) as log:   # partition_log.py
        log.append(batch)
        log.sync()

`log_writer.py` validates and writes batches, `log_reader.py` finds them, `durability.py` and `group_commit.py` make them durable.
"""
