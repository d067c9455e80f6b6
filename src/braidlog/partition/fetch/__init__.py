"""Fetch from a partition: find a slice of the log, wait for new records, decode for protocols without batches."""
