"""The rule for topic names, shared by all listeners."""

import re

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX

_LEGAL = re.compile(r"[A-Za-z0-9._=-]+")  # Kafka's rule lacks the `=` that Cursus's clients use


def check_topic_name(name: str) -> str:
    """Return the name, or raise `BrokerError(INVALID_TOPIC_NAME)` that says which rule it breaks."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        fault = f"a topic name must have 1 to {NAME_CHARS_MAX} characters, this one has {len(name)}"
    elif name in (".", ".."):
        fault = f"{name!r} is a folder, not a topic name"
    elif _LEGAL.fullmatch(name) is None:
        fault = f"topic name {name[:60]!r} has characters outside A-Z a-z 0-9 . _ - ="
    else:
        return name
    raise BrokerError(Reason.INVALID_TOPIC_NAME, fault)


def no_topic(name: str) -> BrokerError:
    """Return the error for an unknown topic. A topic that the caller may not describe gives the same error."""
    shown = name[:NAME_CHARS_MAX]
    hint = f"; create it with `braid topic create {shown}`" if _LEGAL.fullmatch(shown) else ""
    return BrokerError(Reason.TOPIC_NOT_FOUND, f"no topic {shown[:60]!r}{hint}")


def node_number(name: str) -> int | None:
    """Return a node's name as a number, for protocols that identify nodes by number; None if it is not a number of 31
    bits.
    """
    return int(name) if name.isascii() and name.isdigit() and len(name) <= 9 else None


def own_number(name: str) -> int:
    """Return the number of the node with this name: 0 if the name is not a number."""
    return node_number(name) or 0
