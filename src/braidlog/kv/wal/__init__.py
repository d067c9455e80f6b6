"""The write-ahead log of the local store, which holds the keys of a node without a cluster: log files, snapshots,
recovery."""
