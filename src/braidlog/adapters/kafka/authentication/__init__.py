"""SASL on Kafka's port: PLAIN and SCRAM."""
