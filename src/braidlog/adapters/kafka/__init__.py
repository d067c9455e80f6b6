"""Kafka's adapter.

Does not handle: bytes, sockets.

| file | serves |
|---|---|
| `handlers.py` | every API: the table of routes, and the adapter |
| `routes.py` | rows of the table: handler, permission, its topics, its error response |
| `services.py` | the services that the handlers call |
| `errors.py` | the error code of each reason |
| `topics.py` | topics by name or id |
| `metadata.py` | ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions |
| `producing.py`, `fetching.py`, `listing.py` | Produce; Fetch; ListOffsets, OffsetForLeaderEpoch |
| `refused_batches.py` | batches that follow a retriably rejected batch |
| `groups.py` | FindCoordinator, members, committed offsets, groups |
| `transactions.py`, `staging.py` | producers and transactions; exactly-once batches of sinks |
| `admin.py`, `configuring.py`, `settings.py` | topics; their settings, under Kafka's names |
| `security.py`, `scram.py`, `acls.py` | SASL and users; SCRAM; rules |
"""
