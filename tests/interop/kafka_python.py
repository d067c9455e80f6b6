"""kafka-python's records. Importing it warns of its own use of a deprecated call; no concern of ours."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka import codec
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

__all__ = ["MemoryRecords", "MemoryRecordsBuilder", "codec"]
