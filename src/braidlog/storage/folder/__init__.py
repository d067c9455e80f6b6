"""The data folder of a node: its lock and identity, its topics, snapshots of it, and quarantined files."""
