"""The replica port: replication messages as Kafka's Fetch, and calls between nodes."""
