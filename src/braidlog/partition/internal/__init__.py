"""Internal topics: logs that a node writes for itself, such as metadata, coordinator state and schemas."""
