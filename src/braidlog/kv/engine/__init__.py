"""The key-value engine: a keyspace in memory, operations on it, the clock that orders changes.

store.execute(Set(b"key", b"value"))     # store.py: check, stamp, log, apply
"""
