"""The maxima that several folders share; any other stands beside its owner."""

NAME_CHARS_MAX = 249
"""Of topics, groups, members, producers, transactions, users, nodes. Kafka's own for topics: its clients take no longer ones."""

PARTITIONS_PER_TOPIC_MAX = 10_000

BATCH_BYTES_MAX = 64 * 1024 * 1024
"""No batch on disk is larger; a length beyond it is a lie, whoever tells it. Settings may lower it per topic."""

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""What one compressed batch may grow to."""

LONG_POLL_MS_MAX = 60_000
"""A request that waits for records or replicas is answered by then, on every port, and its client asks again."""

KV_KEY_BYTES_MAX = 256
"""Mayfly's own: a GET cannot be larger than 258 bytes. A field of a hash has the same bound."""

KV_VALUE_BYTES_MAX = 64 * 1024
"""Mayfly's own, of a string, of an element of a list and of a field's value."""

KV_COLLECTION_BYTES_MAX = 8 * 1024 * 1024
"""A list or hash, written out with its lengths: it is one record of the change feed, and that must fit a batch."""
KV_COLLECTION_ITEMS_MAX = 65_536
"""Of a list or hash: it is copied, written and answered as a whole, and each item costs more than its bytes."""
