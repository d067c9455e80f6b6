"""Kafka meets the services.

Knows: which service answers which request, and what each reason is called in Kafka. Refuses to know: bytes, sockets.

| file | serves |
|---|---|
| `handlers.py` | every API: the table of routes, and the adapter |
| `routes.py` | what a row says: handler, permission, how its topics are found, how it is refused |
| `services.py` | the services that the handlers call |
| `errors.py` | what each reason is called |
| `topics.py` | topics by name or id |
| `metadata.py` | ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions |
| `producing.py`, `fetching.py`, `listing.py` | Produce; Fetch; ListOffsets, OffsetForLeaderEpoch |
| `refused_batches.py` | what is sent behind a batch that was refused for now |
| `groups.py` | FindCoordinator, members, committed offsets, groups |
| `transactions.py`, `staging.py` | producers and transactions; batches that count once |
| `admin.py`, `configuring.py`, `settings.py` | topics; their settings, under Kafka's names |
| `security.py`, `scram.py`, `acls.py` | SASL and users; SCRAM; rules |
"""
