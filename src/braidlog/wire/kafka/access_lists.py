"""Numbers and names of Kafka's access control lists.

An ACL has: resource type and name, whether the name is a literal or a prefix, principal, host, operation, permission.
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
    """Resource types. Keys of the key-value store are braidlog's own type: listed only for clients that request it."""

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
"""Resource patterns, named as in the node's rules."""


def split_pattern(pattern: str) -> tuple[str, Pattern]:
    """Split a rule's pattern into name and type: `orders*` is a prefix, `*` matches all names."""
    if pattern.endswith(EVERY_NAME) and pattern != EVERY_NAME:
        return pattern[:-1], Pattern.PREFIXED
    return pattern, Pattern.LITERAL
