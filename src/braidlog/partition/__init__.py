"""Host partitions on this node: append, fetch, read, trim. In the server only this folder uses `PartitionLog`."""
