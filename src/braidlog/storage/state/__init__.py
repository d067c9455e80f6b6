"""State that a partition derives from its batches: producers, transactions and leader epochs, and its files."""
