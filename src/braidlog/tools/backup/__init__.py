"""Back-ups of a data folder: made of a cut (`storage/cut.py`), kept in a folder, verified, restored."""
