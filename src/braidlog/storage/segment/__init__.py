"""One segment: a file of record batches with its header, sparse index and preallocated tail.

segment.append(batch)                        # segment.py: one pwritev
for batch in walk(file, start, end, offset): ...  # batch_scan.py: checks each batch against the one before it
"""
