"""Kafka's APIs for groups, offsets and transactions."""
