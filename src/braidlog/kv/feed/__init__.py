"""The change feed: each change of a key as a record of the topic `__kv`."""
