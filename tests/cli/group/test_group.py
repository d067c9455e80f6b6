"""`braid group` against a real node."""

from typing import Any

import pytest
from tests.adapters.kafka.asker import Asker
from tests.cli.braid import Braid, fresh
from tests.waiting import until

import braidlog
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.messages import consumer_groups as m


@pytest.fixture
def braid(braid_server_shared: ServerProcess) -> Braid:
    return Braid(braid_server_shared)


class Read:
    """A topic of two partitions with five records each, of which a group has committed three and none."""

    def __init__(self, braid: Braid) -> None:
        self.topic, self.group = fresh("topic"), fresh("group")
        braid.ok("topic", "create", self.topic, "-p", "2")
        for number in (0, 1):
            for time in range(5):
                line = f"{time}\n"
                braid.ok("produce", self.topic, "-p", str(number), "--timestamp", str(1000 * time), stdin=line)
        braid.ok("group", "reset", self.group, "--topic", self.topic, "--to", "3", "-p", "0", "--yes")


@pytest.fixture
def read(braid: Braid) -> Read:
    return Read(braid)


def positions(braid: Braid, group: str) -> list[tuple[int, int, int]]:
    told = braid.json("group", "describe", group, schema="group-describe")
    return [(each["partition"], each["committed"], each["lag"]) for each in told["positions"]]


def test_lag_is_counted_in_records(braid: Braid, read: Read) -> None:
    assert positions(braid, read.group) == [(0, 3, 2)]
    rows = braid.json("group", "list", schema="group-list")
    assert {"group": read.group, "kind": "classic", "state": "Empty", "members": 0, "lag": 2} in rows
    assert read.group in braid.ok("group", "list", "-o", "name").split()
    assert [read.group, "classic", "Empty", "0", "2"] in [
        line.split() for line in braid.ok("group", "list").splitlines()
    ]
    shown = braid.ok("group", "describe", read.group).splitlines()
    assert shown[0] == f"{read.group}: classic group, Empty, lag 2"
    assert shown[-1].split() == [read.topic, "0", "3", "5", "2"]


def test_a_group_whose_coordinator_divides_the_work_says_so(
    braid: Braid, read: Read, braid_server_shared: ServerProcess
) -> None:
    group = fresh("group")
    joining = m.ConsumerGroupHeartbeatRequest(
        group, "me", rebalance_timeout_ms=1000, subscribed_topic_names=[read.topic], topic_partitions=[]
    )
    with Asker(braid_server_shared.address("kafka")) as asker:
        assert asker.ask(joining).error_code == 0
        told = braid.json("group", "describe", group, schema="group-describe")
        assert (told["kind"], told["state"], told["lag"]) == ("consumer", "Stable", 10)
        assert told["members"] == [
            {
                "member": "me",
                "partitions": [0, 1],
                "client_id": "asker",
                "host": "/127.0.0.1",
                "shares": {read.topic: [0, 1]},
            }
        ]
        refused = braid.fails(3, "group", "reset", group, "--topic", read.topic, "--to", "1")
        assert "has 1 member" in refused
        assert asker.ask(m.ConsumerGroupHeartbeatRequest(group, "me", -1)).error_code == 0
    braid.ok("group", "reset", group, "--topic", read.topic, "--to", "1", "--yes")
    assert [(each[0], each[2]) for each in positions(braid, group)] == [(0, 4), (1, 4)]


@pytest.mark.parametrize(
    ("aim", "offset"),
    [
        (["--to", "earliest"], 0),
        (["--to", "latest"], 5),
        (["--to", "2"], 2),
        (["--to", "99"], 5),
        (["--to", "1970-01-01T00:00:02.500Z"], 3),
        (["--to", "now"], 5),
        (["--by", "1"], 4),
        (["--by", "-2"], 1),
        (["--by", "-99"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_group_is_sent_elsewhere(braid: Braid, read: Read, aim: list[str], offset: int) -> None:
    planned = braid.json("group", "reset", read.group, *aim, "--dry-run", schema="group-reset")
    assert planned["done"] is False
    assert positions(braid, read.group) == [(0, 3, 2)], "a dry run changes nothing"
    done = braid.json("group", "reset", read.group, *aim, "--yes", schema="group-reset")
    assert done == {**planned, "done": True}
    assert done["moves"] == [
        {"topic": read.topic, "partition": 0, "committed": 3, "to": offset, "lag": 5 - offset},
    ]
    assert positions(braid, read.group) == [(0, offset, 5 - offset)]


def test_topics_that_were_never_read(braid: Braid, read: Read) -> None:
    reset = "group", "reset", read.group, "--topic", read.topic, "--to", "earliest"
    unanswered = braid(*reset)
    assert (unanswered.exit_code, "not a terminal: pass --yes to confirm" in unanswered.stderr) == (2, True)
    assert positions(braid, read.group) == [(0, 3, 2)], "nothing is reset without an answer"
    table = braid.ok(*reset, "--yes").splitlines()
    assert [line.split() for line in table[1:3]] == [[read.topic, "0", "3", "0", "5"], [read.topic, "1", "0", "5"]]
    assert braid.ok("consume", read.topic, "--group", read.group).count("\n") == 10
    nothing = fresh("nothing")
    assert "has no committed offsets" in braid.fails(1, "group", "reset", nothing, "--to", "latest")
    assert "UNKNOWN_TOPIC" in braid.fails(3, "group", "reset", nothing, "--topic", fresh("absent"), "--to", "latest")


def test_members_are_not_committed_over(braid: Braid, read: Read) -> None:
    with braidlog.connect(braid.url) as client, client.consumer() as consumer:
        consumer.subscribe(read.topic, group=read.group)
        told: dict[str, Any] = braid.json("group", "describe", read.group, schema="group-describe")
        assert [sorted(each["partitions"]) for each in told["members"]] == [[0, 1]]
        assert "MEMBER" in braid.ok("group", "describe", read.group)
        for args in (["--to", "earliest"], ["--to", "earliest", "--dry-run"]):
            assert "has 1 member" in braid.fails(3, "group", "reset", read.group, *args)
        assert "NON_EMPTY_GROUP" in braid.fails(3, "group", "delete", read.group, "--yes")
    assert positions(braid, read.group) == [(0, 3, 2)]


def test_a_group_is_forgotten(braid: Braid, read: Read) -> None:
    assert braid.ok("group", "delete", read.group, "--yes") == f"deleted {read.group}\n"
    assert read.group not in braid.ok("group", "list", "-o", "name").split()
    assert "GROUP_ID_NOT_FOUND" in braid.fails(3, "group", "delete", read.group, "--yes")


def test_the_commits_of_one_topic_are_forgotten(braid: Braid) -> None:
    group, kept, gone = fresh("g"), fresh("kept"), fresh("gone")
    for topic in (kept, gone):
        braid.ok("topic", "create", topic, "-p", "2")
        braid.ok("group", "reset", group, "--to", "latest", "--topic", topic, "--yes")
    assert braid.ok("group", "delete", group, "--topic", gone, "--yes") == f"{group}: deleted 2 committed offsets\n"
    left = braid.json("group", "describe", group, schema="group-describe")["positions"]
    assert [(row["topic"], row["partition"]) for row in left] == [(kept, 0), (kept, 1)]
    assert "has no committed offsets in" in braid.fails(1, "group", "delete", group, "--topic", gone, "--yes")
    with braidlog.connect(braid.url) as client, client.consumer() as consumer:
        consumer.subscribe(kept, group=group)
        consumer.poll(timeout=0)
        until(lambda: bool(client.admin.describe_group(group).members), "a member")
        said = braid.fails(3, "group", "delete", group, "--topic", kept, "--yes")
        assert "members read this topic; stop them first" in said


def test_a_topic_that_is_gone(braid: Braid, read: Read) -> None:
    """What was committed of it goes with it; the rest stays."""
    other = fresh("other")
    braid.ok("topic", "create", other)
    braid.ok("group", "reset", read.group, "--topic", other, "--to", "latest", "--yes")
    assert positions(braid, read.group) == [(0, 0, 0), (0, 3, 2)]
    braid.ok("topic", "delete", read.topic, "--yes")
    assert positions(braid, read.group) == [(0, 0, 0)]


@pytest.mark.parametrize(
    "args",
    [
        ["describe"],
        ["reset", "g"],
        ["reset", "g", "--to", "latest", "--by", "1"],
        ["reset", "g", "--to", "somewhere"],
        ["reset", "g", "--by", "some"],
        ["delete", "g"],  # nobody is there to be asked
        ["list", "-o", "xml"],
    ],
    ids=" ".join,
)
def test_wrong_usage(braid: Braid, args: list[str]) -> None:
    assert "Usage:" in braid.fails(2, "group", *args)


def test_doors_that_tell_less(braid_server_shared: ServerProcess) -> None:
    kafka = Braid(braid_server_shared)
    topic = fresh("less")
    kafka.ok("topic", "create", topic)
    kafka.ok("produce", topic, stdin="one\ntwo\n")
    group = fresh("cursus")
    cursus = Braid(braid_server_shared, "cursus")
    assert cursus.ok("consume", topic, "--group", group, "-n", "1") == "one\n"
    assert "pass --topic" in cursus.fails(2, "group", "reset", group, "--to", "latest")
    done = cursus.ok("group", "reset", group, "--to", "latest", "--topic", topic, "--yes")
    assert done.endswith(f"Reset the offsets of group {group}.\n")
    assert "listing a group's commits" in cursus.fails(3, "group", "delete", group, "--yes")
    assert "listing and describing groups" in Braid(braid_server_shared, "rustlog").fails(3, "group", "list")
    flux = Braid(braid_server_shared, "flux")
    assert "members only" in flux.fails(3, "group", "reset", group, "--to", "latest", "--topic", topic)
