"""What the nodes agree on: a log of events, and the tables that follow from it.

Knows: the local store of such events (one node). Refuses to know: requests, dialects, records of users' topics.
May import: replication, storage, model, codec.
"""
