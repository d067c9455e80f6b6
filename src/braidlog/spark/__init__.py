"""Spark: topics, keys and tables as sources and sinks, and the pipeline made of them.

Knows: Spark's Python data source API, and braidlog as a client does. Refuses to know: the inside of a server.
"""
