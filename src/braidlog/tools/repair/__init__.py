"""Repair of a damaged data folder, offline: partitions, derived state, quarantined bytes."""
