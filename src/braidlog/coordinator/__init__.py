"""State of coordinators, which moves with them: offsets, groups, transactions, staged batches, producers, streams."""
