"""Names of things, and what a name may be.

Knows: the rule for topic names, shared by all doors. Refuses to know: where a topic lives on disk.
"""

import re

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX

_LEGAL = re.compile(r"[A-Za-z0-9._=-]+")  # Kafka's own rule lacks the `=` that Cursus's clients use


def check_topic_name(name: str) -> str:
    """Return the name, or raise `BrokerError(INVALID_TOPIC_NAME)` with a sentence that says what is wrong with it."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        fault = f"a topic name has 1 to {NAME_CHARS_MAX} characters, this one has {len(name)}"
    elif name in (".", ".."):
        fault = f"{name!r} is a folder, not a topic name"
    elif _LEGAL.fullmatch(name) is None:
        fault = f"topic name {name[:60]!r} has characters outside A-Z a-z 0-9 . _ - ="
    else:
        return name
    raise BrokerError(Reason.INVALID_TOPIC_NAME, fault)


def no_topic(name: str) -> BrokerError:
    """What is said of a topic that is not there, and in the same words of one that whoever asks may not know of."""
    shown = name[:NAME_CHARS_MAX]
    hint = f"; create it with `braid topic create {shown}`" if _LEGAL.fullmatch(shown) else ""
    return BrokerError(Reason.TOPIC_NOT_FOUND, f"no topic {shown[:60]!r}{hint}")


def node_number(name: str) -> int | None:
    """A node's name as a number, for protocols that know nodes by number; None if it is none of 31 bits."""
    return int(name) if name.isascii() and name.isdigit() and len(name) <= 9 else None


def own_number(name: str) -> int:
    """The number that a node of this name has: 0 if its name is none."""
    return node_number(name) or 0
