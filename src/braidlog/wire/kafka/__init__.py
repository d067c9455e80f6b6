"""Kafka's dialect: length-prefixed frames, a table of messages with versions, record batches carried as they are.

Knows: the protocol of Apache Kafka as its clients speak it. Refuses to know: sockets, clocks, the log, and the other dialects.
"""
