"""Keys of a cluster: 128 slots in 8 replicated logs; checkpoints, anti-entropy and salvage of each log."""
