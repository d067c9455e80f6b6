"""Exports topics to Iceberg tables: closed segments become Parquet files, and one commit adds their rows.

Other packages import `plan.py` only: the other modules need pyarrow and pyiceberg, and run in a worker process.
"""
