"""The protocol as a table: one type per message, one row per field with the versions that have it.

Contains Apache Kafka's published message schemas that `apis.py` lists. Messages and fields have Kafka's names, so
that its documentation applies.
"""
