"""A topic as an Iceberg table: closed segments become Parquet files, and one commit makes them rows.

`plan.py` is what others import: the other modules need pyarrow and pyiceberg, and run in a worker process alone.
"""
