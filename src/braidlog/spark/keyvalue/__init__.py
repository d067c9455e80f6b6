"""Keys and values for Spark: the store as a table, its changes as a stream, and a sink that sets and deletes.

Knows: the change feed's records and the key-value client. Refuses to know: the store itself.
"""
