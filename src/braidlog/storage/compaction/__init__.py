"""Remove old records: by key (compaction), by age and by size (retention)."""
