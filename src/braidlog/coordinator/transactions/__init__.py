"""Transactions: their state machine, markers, producer ids, offset commits and staged batches."""
