"""Backups of a data folder: created from a snapshot of the folder (`storage/folder/folder_snapshot.py`), verified, restored."""
