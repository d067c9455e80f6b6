"""Backups of a data folder: created from a snapshot of the folder (`storage/cut.py`), verified, restored."""
