"""Decisions of replication, as pure functions of messages and time.

Knows: in-sync sets, watermarks, epochs. Refuses to know: sockets, disks, clocks (time is an argument).
May import: model, codec.
"""
