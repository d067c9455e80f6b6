"""Kafka meets the services.

Knows: which service answers which request, and what each reason is called in Kafka. Refuses to know: bytes, sockets.

| file | serves |
|---|---|
| `handlers.py` | every API: the table of routes, and the adapter |
| `errors.py` | what each reason is called |
| `topics.py` | topics by name or id, and what one may do with them |
| `metadata.py` | ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions |
| `producing.py` | Produce, InitProducerId |
| `fetching.py` | Fetch |
| `listing.py` | ListOffsets, OffsetForLeaderEpoch |
"""
