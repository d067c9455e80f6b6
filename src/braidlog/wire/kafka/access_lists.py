"""The numbers and words of Kafka's access control lists, for who keeps them and for who asks.

A line of a list: resource type and name, whether that is the name or a prefix, principal, host, operation, permission.
"""

from enum import IntEnum
from typing import Final

ANY: Final = 1
CLUSTER_NAME: Final = "kafka-cluster"
USER: Final = "User:"
EVERY_HOST: Final = "*"
EVERY_NAME: Final = "*"
DENY, ALLOW = 2, 3


class Resource(IntEnum):
    """Keys of the key-value store are ours: told only to who asks for that number."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    KEY = 100


class Pattern(IntEnum):
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


OPERATIONS: Final[dict[str, int]] = {
    "*": 2,
    "read": 3,
    "write": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
    "cluster": 9,
}
"""By the words of our rules."""


def split_pattern(pattern: str) -> tuple[str, Pattern]:
    """A rule's pattern as a name and what it stands for: `orders*` is a prefix, `*` the name for all."""
    if pattern.endswith(EVERY_NAME) and pattern != EVERY_NAME:
        return pattern[:-1], Pattern.PREFIXED
    return pattern, Pattern.LITERAL
