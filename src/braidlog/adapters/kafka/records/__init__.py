"""Kafka's APIs for records: Produce, Fetch, ListOffsets."""
