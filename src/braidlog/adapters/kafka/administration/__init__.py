"""Kafka's administrative APIs: topics, configurations, ACLs, quotas, replica placement."""
