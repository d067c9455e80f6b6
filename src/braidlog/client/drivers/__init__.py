"""One driver per dialect behind one port (`contract.py`), and the connections and routing that drivers share."""
