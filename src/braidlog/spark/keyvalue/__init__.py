"""Keys and values for Spark: the store as a table, its changes as a stream, and a sink that sets and deletes keys.

Uses the change feed and the key-value client.
"""
