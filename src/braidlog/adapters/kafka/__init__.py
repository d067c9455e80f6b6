"""Kafka's adapter.

Does not handle: bytes, sockets.

| file | serves |
|---|---|
| `handlers.py` | every API: the table of routes, and the adapter |
| `routes.py` | rows of the table: handler, permission, its topics, its error response |
| `services.py` | the services that the handlers call |
| `errors.py` | the error code of each reason |
| `topic_entries.py` | topics by name or id |
| `metadata.py` | ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions |
| `produce_requests.py`, `fetch_requests.py`, `list_offsets.py` | Produce; Fetch; ListOffsets, OffsetForLeaderEpoch |
| `refused_batches.py` | batches that follow a retriably rejected batch |
| `groups.py` | FindCoordinator, members, committed offsets, groups |
| `transactions.py`, `staged_batches.py` | producers and transactions; exactly-once batches of sinks |
| `topics_admin.py`, `configs.py`, `config_table.py` | topics; their settings, under Kafka's names |
| `sasl.py`, `scram.py`, `acls.py` | SASL and users; SCRAM; rules |
"""
