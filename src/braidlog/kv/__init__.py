"""The key-value engine: a keyspace in memory, the log that outlives it, and the clock that orders its changes.

Knows: keys, values, expiry, memory, and how all of it comes back after a crash. Refuses to know: wires, the event loop, topics.
May import: storage, model, codec.
"""
