"""`braid demo clicks`: events that can be checked for gaps, through every door."""

import json
import random
import signal
from collections import Counter

import pytest
from tests.cli.braid import DIALECTS, SECONDS_MAX, Braid, check, fresh

from braidlog.testing.server import ServerProcess
from braidlog.tools.clicks import Clicks


def test_events_of_one_seed() -> None:
    """Sequences and versions count up by one; the same seed makes the same events; times are the caller's."""
    events = [Clicks("p", random.Random(7)).next(1000)]
    source, again = Clicks("p", random.Random(7)), Clicks("p", random.Random(7))
    events = [source.next(1_700_000_000_000 + at) for at in range(2000)]
    assert events == [again.next(1_700_000_000_000 + at) for at in range(2000)]
    assert [event.sequence for event in events] == list(range(1, 2001))
    versions: Counter[str] = Counter()
    users: dict[str, str] = {}
    ended: set[str] = set()
    for event in events:
        versions[event.aggregate] += 1
        assert event.version == versions[event.aggregate]
        assert users.setdefault(event.aggregate, event.user) == event.user
        assert event.aggregate not in ended
        assert event.id == event.aggregate
        assert event.latency_ms > 0
        assert (event.amount is not None) == (event.type == "order_placed")
        assert (event.type == "session_started") == (event.version == 1)
        if event.type == "session_ended":
            ended.add(event.aggregate)
    kinds = {event.type for event in events}
    assert kinds == {"session_started", "page_viewed", "link_clicked", "item_added", "order_placed", "session_ended"}
    assert len({event.event_id for event in events}) == 2000
    assert events[1].at == "2023-11-14T22:13:20.001Z"
    other = Clicks("p", random.Random(8))
    assert [other.next(1_700_000_000_000 + at) for at in range(2000)] != events


@pytest.mark.parametrize("dialect", DIALECTS)
def test_through_each_door(dialect: str, braid_server_shared: ServerProcess) -> None:
    topic, braid = fresh("clicks"), Braid(braid_server_shared, dialect)
    said = braid.ok(
        "demo", "clicks", "--topic", topic, "--count", "60", "--rate", "0", "--producer", "p", "--seed", "1"
    )
    assert said == f"60 records acknowledged in {topic} by p\n"
    kafka = Braid(braid_server_shared)
    records = [json.loads(line) for line in kafka.ok("consume", topic, "--json").splitlines()]
    events = [json.loads(record["value"]) for record in records]
    for event in events:
        check("click", event)
    assert sorted(event["sequence"] for event in events) == list(range(1, 61))
    if dialect != "mlog":
        assert all(record["key"] == event["aggregate"] for record, event in zip(records, events, strict=True))
    if dialect == "kafka":
        assert all(
            record["headers"]
            == [{"name": "producer", "value": "p"}, {"name": "sequence", "value": str(event["sequence"])}]
            for record, event in zip(records, events, strict=True)
        )
        assert len(kafka.json("topic", "describe", topic, schema="topic-describe")[0]["partitions"]) == 3


def test_until_it_is_interrupted(braid_server_shared: ServerProcess) -> None:
    """At a rate; what it says it has sent is what is there."""
    topic, braid = fresh("clicks"), Braid(braid_server_shared)
    braid.ok("topic", "create", topic)
    with braid.start("tail", topic, "-n", "5", "-o", "beginning") as follower:
        with braid.start("demo", "clicks", "--topic", topic, "--rate", "50") as source:
            out, _ = follower.communicate(timeout=SECONDS_MAX)
            assert out.count(b"\n") == 5
            source.send_signal(signal.SIGINT)
            said, errors = source.communicate(timeout=SECONDS_MAX)
        assert (source.returncode, errors) == (0, b"")
    count = int(said.split()[0])
    assert count >= 5
    assert braid.ok("consume", topic).count("\n") == count


def test_wrong_usage() -> None:
    for args in (["--rate", "-1"], ["--count", "0"], ["-p", "0"]):
        assert "Usage:" in Braid().fails(2, "demo", "clicks", *args)
    assert "Usage:" in Braid().fails(2, "demo", "sheep")
