"""Every maximum in one place. A length, count or queue that is not bounded here is a defect.

Knows: numbers and the reason for each. Refuses to know: who enforces them.
"""

TOPIC_NAME_CHARS_MAX = 249
"""Kafka's own limit: longer names do not fit its clients."""

PARTITIONS_PER_TOPIC_MAX = 10_000

FOLLOWERS_PER_TOPIC_MAX = 32
NODE_NAME_CHARS_MAX = 249

BATCH_BYTES_MAX = 64 * 1024 * 1024
"""No batch on disk is larger; a length beyond it is a lie, whoever tells it. Settings may lower it per topic."""

RECORDS_PER_BATCH_MAX = 10_000_000
"""A record takes seven bytes at least, so 64 MiB cannot honestly hold more."""

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""What one compressed batch may grow to."""

BROKERS_MAX = 1_000
"""Brokers that can be made known to a node: each one is an entry in its journal for good."""

HEADERS_PER_RECORD_MAX = 10_000

PRODUCERS_PER_PARTITION_MAX = 100_000
"""Idempotent producers remembered by one partition; the oldest idle ones are forgotten first."""

SEGMENT_BYTES_MIN = 4 * 1024
SEGMENT_BYTES_MAX = 2**31 - 1

KV_KEY_BYTES_MAX = 256
"""Mayfly's own: a GET cannot be larger than 258 bytes. A field of a hash has the same bound."""

KV_VALUE_BYTES_MAX = 64 * 1024
"""Mayfly's own, of a string, of an element of a list and of a field's value."""

KV_COLLECTION_BYTES_MAX = 8 * 1024 * 1024
"""A list or hash, written out with its lengths: it is one record of the change feed, and that must fit a batch."""
