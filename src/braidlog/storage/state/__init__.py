"""State that a partition derives from its batches: producers, transactions, leader epochs; and the files that save
it.
"""
