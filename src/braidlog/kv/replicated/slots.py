"""Maps keys to slots, slots to logs, and logs to nodes.

The mapping is pure and fixed: the slot of a key and the log of a slot are part of the data on disk. Clients
locate keys by slot; replication, leadership and moves work on logs. The number of logs is the log topic's
partition count, fixed at its creation. Nodes are ranked for each log by a hash of both (rendezvous hashing with
bounded loads): no node leads more than its share, rounded up, and a new node takes its share from the other
nodes.
"""

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from braidlog.codec.crc import crc32c

SLOTS: Final = 128
KEY_LOGS: Final = 8
"""Logs of a new cluster."""
LOG_TOPIC: Final = "__kv_log"
"""The topic whose partitions are the logs of keys."""
FEED_TOPIC: Final = "__kv"
"""The topic of the change feed. In a cluster, a log's changes are in the partition with its number; else it has one
partition."""


def slot_of(key: bytes) -> int:
    return crc32c(key) % SLOTS


def log_of(slot: int, logs: int) -> int:
    """Return the log that has the keys of a slot."""
    return slot % logs


def slots_in(log: int, logs: int) -> int:
    """Return the number of slots in a log."""
    return len(range(log, SLOTS, logs))


def placements(logs: int, nodes: Collection[int], replicas: int) -> list[tuple[int, ...]]:
    """Return the nodes that hold each log, the preferred leader first."""
    replicas = min(replicas, len(nodes))
    leads, holds = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)
    placed = []
    for log in range(logs):
        ranked = sorted(nodes, key=lambda node: (_rank(log, node), node), reverse=True)
        leader = min(ranked, key=lambda node: not _takes_one_more(leads, node, logs))
        leads[leader] += 1
        ranked.remove(leader)
        holds[leader] += 1
        followers = sorted(ranked, key=lambda node: not _takes_one_more(holds, node, logs * replicas))[: replicas - 1]
        for node in followers:
            holds[node] += 1
        placed.append((leader, *followers))
    return placed


def _takes_one_more(counts: dict[int, int], node: int, total: int) -> bool:
    """Return whether a node has less than its even share of a total."""
    share, rest = divmod(total, len(counts))
    return counts[node] < share or (counts[node] == share and sum(each > share for each in counts.values()) < rest)


def _rank(log: int, node: int) -> bytes:
    return blake2b(b"%d/%d" % (log, node), digest_size=8).digest()
