"""Tables in a lake: Delta, Iceberg or a plain folder of Parquet files, written by Spark's tasks without a jar.

Knows: how files become part of a table once and only once. Refuses to know: where the rows came from.
"""
