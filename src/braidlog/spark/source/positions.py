"""Offsets as Spark stores them: `{"topic": {"partition": next offset}}`, the JSON of its own Kafka connector.

A checkpoint holds only topics, partitions and numbers: it is readable for people, and for all programs that read the
Kafka connector's checkpoints. The identity of a topic is stored as partition 0 of a topic name that cannot exist:

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
"""Topic → a number that distinguishes it from a deleted topic with the same name."""

IDENTITY: Final = "@id"
_IDENTITY_BYTES: Final = 8


def identity(topic_id: bytes) -> int:
    """Return a topic id as a number, which every reader of offsets accepts; 0 if there is no id."""
    return int.from_bytes(topic_id[:_IDENTITY_BYTES]) >> 1


def to_json(offsets: Mapping[Place, int], identities: Mapping[str, int] | None = None) -> dict[str, dict[str, int]]:
    """Encode offsets, sorted, so that equal offsets give equal text: Spark compares texts."""
    data: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        data.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    for topic in list(data):
        if known := (identities or {}).get(topic):
            data[topic + IDENTITY] = {"0": known}
    return data


def identities_of(data: Mapping[str, Any]) -> Identities:
    """Return the identities of topics in a JSON object; offsets of older versions have none."""
    return {
        topic.removesuffix(IDENTITY): int(numbers["0"]) for topic, numbers in data.items() if topic.endswith(IDENTITY)
    }


def same_topics(start: Offsets, then: Identities, now: Identities) -> Offsets:
    """Return the offsets of topics whose identity has not changed; an unknown identity counts as unchanged."""
    changed = {topic for topic, known in then.items() if now.get(topic, known) != known}
    return {place: at for place, at in start.items() if place[0] not in changed}


def from_json(data: Mapping[str, Any], low: int = 0) -> Offsets:
    """Decode offsets; ValueError if the object is invalid, or a number is below `low`."""
    offsets: Offsets = {}
    for topic, partitions in data.items():
        if topic.endswith(IDENTITY):
            continue
        if not isinstance(partitions, dict):
            raise ValueError(f"{topic!r} has {partitions!r} instead of partitions and numbers")  # noqa: TRY004
        for number, offset in partitions.items():
            if not number.isdecimal() or not number.isascii():
                raise ValueError(f"{number!r} is not a partition of {topic!r}")
            if not isinstance(offset, int) or isinstance(offset, bool) or not low <= offset < 2**63:
                raise ValueError(f"{offset!r} is not a valid offset of {topic}/{number}")
            offsets[topic, int(number)] = offset
    return offsets


def assigned(data: Mapping[str, Any]) -> tuple[Place, ...]:
    """Return the partitions in `{"topic": [0, 1]}`."""
    places: list[Place] = []
    for topic, numbers in data.items():
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"{topic!r} has {numbers!r} instead of a list of partitions")
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**31:
                raise ValueError(f"{number!r} is not a partition of {topic!r}")
            places.append((topic, number))
    if not places:
        raise ValueError("no partition is named")
    return tuple(dict.fromkeys(places))


def shown(places: Iterable[Place], limit: int = 10) -> str:
    """Format places for an error."""
    every = sorted(places)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(f"{topic}/{partition}" for topic, partition in every[:limit]) + more
