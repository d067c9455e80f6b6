"""`braid topic` against a real node."""

import pytest
from tests.cli.braid import Braid, fresh

from braidlog.testing.server import ServerProcess


@pytest.fixture
def braid(braid_server_shared: ServerProcess) -> Braid:
    return Braid(braid_server_shared)


def test_a_topic_from_its_making_to_its_end(braid: Braid) -> None:
    topic = fresh("topic")
    assert braid.ok("topic", "create", topic, "-p", "2", "-c", "retention.ms=5000") == f"created {topic}\n"
    assert topic in braid.ok("topic", "list", "-o", "name").split()
    assert [topic, "2", "0"] in [line.split() for line in braid.ok("topic", "list").splitlines()]
    braid.ok("produce", topic, "-p", "1", stdin="one\ntwo\n")
    rows = braid.json("topic", "list", schema="topic-list")
    assert {"topic": topic, "partitions": 2, "offsets": 2} in rows
    (described,) = braid.json("topic", "describe", topic, schema="topic-describe")
    assert described["partitions"] == [
        {"partition": 0, "earliest": 0, "latest": 0},
        {"partition": 1, "earliest": 0, "latest": 2},
    ]
    assert described["settings"] == [{"name": "retention.ms", "value": "5000", "is_default": False}]
    assert braid.ok("topic", "alter", topic, "-p", "3", "--reset", "retention.ms", "-c", "segment.bytes=2000000")
    shown = braid.ok("topic", "describe", topic)
    assert shown.splitlines()[0] == topic
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["PARTITION", "EARLIEST", "LATEST"],
        ["0", "0", "0"],
        ["1", "0", "2"],
        ["2", "0", "0"],
        ["SETTING", "VALUE"],
        ["segment.bytes", "2000000"],
    ]
    assert "default" in braid.ok("topic", "describe", topic, "--all")
    assert braid.ok("topic", "trim", topic, "-p", "1", "--before", "1", "--yes") == f"{topic}/1 now starts at 1\n"
    assert braid.ok("consume", topic) == "two\n"
    braid.ok("topic", "trim", topic, "--before", "end", "--yes")
    assert braid.ok("consume", topic) == ""
    assert braid.ok("topic", "delete", topic, "--yes") == f"deleted {topic}\n"
    assert "UNKNOWN_TOPIC" in braid.fails(3, "topic", "describe", topic)


def test_what_is_there_is_left_alone(braid: Braid) -> None:
    topic = fresh("twice")
    braid.ok("topic", "create", topic)
    assert "TOPIC_ALREADY_EXISTS" in braid.fails(3, "topic", "create", topic)
    assert braid.ok("topic", "create", topic, "-p", "9", "--if-absent") == f"{topic} already exists\n"
    assert len(braid.json("topic", "describe", topic, schema="topic-describe")[0]["partitions"]) == 1


def test_wrong_settings_are_refused_with_the_servers_words(braid: Braid) -> None:
    topic = fresh("wrong")
    assert "unknown topic setting" in braid.fails(3, "topic", "create", topic, "-c", "no.such=1")
    assert "; did you mean retention.ms?" in braid.fails(3, "topic", "create", topic, "-c", "retention.mss=1")
    braid.ok("topic", "create", topic)
    assert "a whole number" in braid.fails(3, "topic", "alter", topic, "-c", "retention.ms=soon")


@pytest.mark.parametrize(
    "args",
    [
        ["create"],
        ["create", "t", "-p", "0"],
        ["create", "t", "-c", "novalue"],
        ["alter", "t"],
        ["describe"],
        ["describe", "t", "-o", "name"],
        ["list", "-o", "xml"],
        ["trim", "t"],
        ["trim", "t", "--before", "soon", "--yes"],
        ["delete", "t"],  # nobody is there to be asked
        ["destroy", "t"],
    ],
    ids=" ".join,
)
def test_wrong_usage(braid: Braid, args: list[str]) -> None:
    assert "Usage:" in braid.fails(2, "topic", *args)


def test_a_partition_that_is_not_there(braid: Braid) -> None:
    topic = fresh("few")
    braid.ok("topic", "create", topic)
    for args in (["topic", "trim", topic, "--before", "0", "-p", "1", "--yes"], ["consume", topic, "-p", "1"]):
        assert "partition 1 does not exist" in braid.fails(2, *args)


def test_doors_that_tell_less(braid_server_shared: ServerProcess) -> None:
    """Without settings the description says so; what a dialect cannot is refused with the client's sentence."""
    for dialect in ("cursus", "mlog", "rustlog", "flux"):
        braid = Braid(braid_server_shared, dialect)
        topic = fresh(dialect)
        braid.ok("topic", "create", topic)
        assert topic in braid.ok("topic", "list", "-o", "name").split()
        (described,) = braid.json("topic", "describe", topic, schema="topic-describe")
        assert described["settings"] is None
        for refused in (
            ["create", fresh(), "-c", "retention.ms=1"],
            ["alter", topic, "-p", "2"],
            ["trim", topic, "--before", "0", "--yes"],
        ):
            said = braid.fails(3, "topic", *refused)
            assert said.startswith(f"braid: {dialect} does not support ")
            assert said.endswith("supported by: kafka\n")
        if dialect in ("rustlog", "flux"):
            assert "deleting topics" in braid.fails(3, "topic", "delete", topic, "--yes")
        else:
            braid.ok("topic", "delete", topic, "--yes")
