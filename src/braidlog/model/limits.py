"""Limits that several folders share. Other limits are beside their owner."""

NAME_CHARS_MAX = 249
"""Of topics, groups, members, producers, transactions, users, nodes. For topics this is Kafka's limit: its clients
accept no longer ones.
"""

PARTITIONS_PER_TOPIC_MAX = 10_000

BATCH_BYTES_MAX = 64 * 1024 * 1024
"""No batch on disk is larger; a larger announced length is invalid. Settings may lower it per topic."""

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""Maximum decompressed size of one batch."""

LONG_POLL_MS_MAX = 60_000
"""Maximum wait for records or replicas. The node then responds on every port, and the client retries."""

KV_KEY_BYTES_MAX = 256
"""Maximum size of a key, from Mayfly: a GET cannot be larger than 258 bytes. A field of a hash has the same limit."""

KV_VALUE_BYTES_MAX = 64 * 1024
"""Maximum size of a string, of an element of a list and of a field's value, from Mayfly."""

KV_COLLECTION_BYTES_MAX = 8 * 1024 * 1024
"""Maximum encoded size of a list or hash: it is one record of the change feed, and must fit a batch."""
KV_COLLECTION_ITEMS_MAX = 65_536
"""Maximum items of a list or hash: it is copied, written and sent as a whole, and each item has an overhead."""
