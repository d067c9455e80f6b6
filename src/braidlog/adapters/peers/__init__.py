"""The nodes' port for records: how the questions and answers of replication are said as Kafka's Fetch."""
