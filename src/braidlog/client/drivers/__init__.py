"""One driver per dialect behind one port (`contract.py`), and what they share: connections and routing."""
