"""Decisions of replication, as pure functions of messages and time.

Knows: in-sync sets, watermarks, epochs, elections. Refuses to know: sockets, disks, clocks (time is an argument), chance.
May import: model, codec. `replica.py` is the way in: a state and a message give the next state and a `Ready` (ADR 19).
"""
