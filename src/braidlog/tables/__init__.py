"""Exports a topic as an Iceberg table: closed segments become Parquet files, and one commit adds them as rows.

Other packages import `plan.py` only: the other modules need pyarrow and pyiceberg, and run in a worker process.
"""
