"""The write-ahead log of a lone node's keys: log files, snapshots, recovery."""
