"""Back-ups of a data folder: made of a cut (`storage/folder/folder_snapshot.py`), kept in a folder, verified, restored."""
