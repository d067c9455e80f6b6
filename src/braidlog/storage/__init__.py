"""Store partitions as segment logs on a disk.

This package knows what is on disk, what of it is durable and what is damaged. It has no networks, dialects or event
loops: every call is synchronous. Only `files.py` calls the operating system; every other module uses the `Disk` that
it receives.

May import: model, codec.
"""
