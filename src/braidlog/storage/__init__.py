"""The segment log: partitions of segments on a disk.

Knows: what is on disk, what of it is durable, what of it is damaged. Refuses to know: networks, dialects, event loops.
Synchronous. `files.py` alone touches the operating system; everything else speaks to the `Disk` it is given.
May import: model, codec.
"""
