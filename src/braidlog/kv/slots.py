"""Keys are divided into slots, and slots among nodes.

Pure, and fixed for ever: a key's slot is part of what is on disk. Nodes are ranked for each slot by a hash of both (rendezvous
hashing): one that is added takes its share from all others, and nothing else moves.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from braidlog.codec.crc import crc32c

SLOTS: Final = 128
LOG_TOPIC: Final = "__kv_log"
"""A slot is the partition of this topic with its number."""
FEED_TOPIC: Final = "__kv"
"""The change feed. Where keys are in slots, each slot's is the partition with its number; else it has one."""


def slot_of(key: bytes) -> int:
    return crc32c(key) % SLOTS


def placed(slot: int, nodes: Iterable[int], replicas: int) -> tuple[int, ...]:
    """The nodes that hold a slot, the preferred leader first."""
    return tuple(sorted(nodes, key=lambda node: (_rank(slot, node), node), reverse=True)[:replicas])


def _rank(slot: int, node: int) -> bytes:
    return blake2b(b"%d/%d" % (slot, node), digest_size=8).digest()
