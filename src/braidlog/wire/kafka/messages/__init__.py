"""The protocol as a table: one type a message, one row a field, the versions that have it beside it.

Knows: Apache Kafka's published message schemas, as far as `apis.py` serves them. Refuses to know: bytes, services.
The names of messages and fields are Kafka's own, so that what is written about them elsewhere can be found.
"""
