"""Cluster metadata: a replicated log of events and the tables derived from it.

Does not handle: requests, dialects, records of user topics. May import: replication, storage, model, codec.
"""
