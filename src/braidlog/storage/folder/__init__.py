"""The data folder of a node: its lock and identity, the topics in it, snapshots of it, quarantined files."""
