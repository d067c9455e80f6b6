"""Background work on partitions: retention, compaction, scrubbing, DeleteRecords, export to tables."""
