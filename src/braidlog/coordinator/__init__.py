"""State that a coordinator keeps and that moves with it: offsets, groups, transactions, staged batches, producers, streams."""
