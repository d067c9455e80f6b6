"""Offsets as Spark keeps them: `{"topic": {"partition": next offset}}`, the JSON of its own Kafka connector.

Knows: that form, and the words and numbers that stand for an end of a log. Refuses to know: where offsets come from.
Invariant: a checkpoint holds topics, partitions and numbers, nothing else: a person can read it, and so does every program that
reads the Kafka connector's. The identity of a topic stands beside it, as partition 0 of a topic that nobody can make:

    {"orders": {"0": 23, "1": 40}, "orders@id": {"0": 6148914691236517205}}
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

Place = tuple[str, int]
Offsets = dict[Place, int]

LATEST: Final = -1
EARLIEST: Final = -2
WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
Identities = dict[str, int]
"""Topic → what tells it from another of the same name, made after it was deleted."""

IDENTITY: Final = "@id"
_IDENTITY_BYTES: Final = 8


def identity(topic_id: bytes) -> int:
    """As a checkpoint keeps it: a number that every reader of offsets takes for one; 0 where there is no id."""
    return int.from_bytes(topic_id[:_IDENTITY_BYTES]) >> 1


def to_json(offsets: Mapping[Place, int], identities: Mapping[str, int] | None = None) -> dict[str, dict[str, int]]:
    """Sorted, so that the same offsets are the same text: Spark compares texts."""
    found: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    for topic in list(found):
        if known := (identities or {}).get(topic):
            found[topic + IDENTITY] = {"0": known}
    return found


def identities_of(data: Mapping[str, Any]) -> Identities:
    """Of the topics of a JSON object; those that an older version wrote have none."""
    return {
        topic.removesuffix(IDENTITY): int(numbers["0"]) for topic, numbers in data.items() if topic.endswith(IDENTITY)
    }


def same_topics(start: Offsets, then: Identities, now: Identities) -> Offsets:
    """The offsets of topics that are still what they were; where one of the two is not known, they are taken to be."""
    changed = {topic for topic, known in then.items() if now.get(topic, known) != known}
    return {place: at for place, at in start.items() if place[0] not in changed}


def from_json(data: Mapping[str, Any], low: int = 0) -> Offsets:
    """The offsets of a JSON object; ValueError if it is none, or if a number is below `low`."""
    found: Offsets = {}
    for topic, partitions in data.items():
        if topic.endswith(IDENTITY):
            continue
        if not isinstance(partitions, dict):
            raise ValueError(f"{topic!r} has {partitions!r} where partitions and numbers should be")  # noqa: TRY004
        for number, offset in partitions.items():
            if not number.isdecimal() or not number.isascii():
                raise ValueError(f"{number!r} is no partition of {topic!r}")
            if not isinstance(offset, int) or isinstance(offset, bool) or not low <= offset < 2**63:
                raise ValueError(f"{offset!r} is no number for {topic}/{number}")
            found[topic, int(number)] = offset
    return found


def assigned(data: Mapping[str, Any]) -> tuple[Place, ...]:
    """The places of `{"topic": [0, 1]}`."""
    found: list[Place] = []
    for topic, numbers in data.items():
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"{topic!r} has {numbers!r} where a list of partitions should be")
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**31:
                raise ValueError(f"{number!r} is no partition of {topic!r}")
            found.append((topic, number))
    if not found:
        raise ValueError("no partition is named")
    return tuple(dict.fromkeys(found))


def shown(places: Iterable[Place], limit: int = 10) -> str:
    """Places as an error names them."""
    every = sorted(places)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(f"{topic}/{partition}" for topic, partition in every[:limit]) + more
