"""Who changed what, in the log: a line for every administrative request, whichever door it came by."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import braidlog
from braidlog import kv
from braidlog.client.drivers.contract import AccessRule
from braidlog.client.drivers.quotas import Quota
from braidlog.client.errors import ClientError
from braidlog.model.actor import Actor
from braidlog.testing.server import ServerProcess

DOORS = ("mlog", "flux", "cursus", "rustlog", "kafka")
SETTINGS = f"""
[auth.tokens]
ann = "{hashlib.sha256(b"ann-token").hexdigest()}"
bob = "{hashlib.sha256(b"bob-token").hexdigest()}"
[[auth.rules]]
principal = "ann"
operations = ["*"]
[[auth.rules]]
principal = "bob"
operations = ["describe"]
topic = "*"
group = "*"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "settings.toml").write_text(SETTINGS)
    with ServerProcess(folder / "data", "--config", str(folder / "settings.toml")) as running:
        yield running


def url(node: ServerProcess, door: str, who: str = "ann") -> str:
    return f"{door}://{who}:{who}-token@127.0.0.1:{node.ports[door]}"


def lines(node: ServerProcess, holds: str) -> list[str]:
    """Audit lines with these words, without their time. They are written before the request is answered."""
    found = re.findall(r"braidlog\.audit: (.*)", node.errors())
    return [re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", line) for line in found if holds in line]


@pytest.mark.parametrize("door", DOORS)
def test_a_topic_that_is_made_has_a_line_with_its_maker(node: ServerProcess, door: str) -> None:
    topic = f"made-by-{door}"
    with braidlog.connect(url(node, door)) as client:
        client.admin.create_topic(topic)
    made = f"topic {topic} created (partitions: 1, replicas: 1): by 'ann' from ADDRESS over {door}"
    assert lines(node, topic)[0] == made


def test_where_everybody_may_do_everything_lines_are_written_too(tmp_path: Path) -> None:
    """There a request that only reads is handed to its handler at once; one that changes something is not."""
    with ServerProcess(tmp_path) as node:
        for door in DOORS:
            with braidlog.connect(f"{door}://127.0.0.1:{node.ports[door]}") as client:
                client.admin.create_topic(f"made-by-{door}")
        for door in DOORS:
            made = f"topic made-by-{door} created (partitions: 1, replicas: 1): by 'anonymous' from ADDRESS over {door}"
            assert lines(node, f"made-by-{door}")[0] == made


@pytest.mark.parametrize("door", DOORS)
def test_who_may_not_has_a_line_too(node: ServerProcess, door: str) -> None:
    topic = f"refused-by-{door}"
    with braidlog.connect(url(node, door, "bob")) as client, pytest.raises(ClientError):
        client.admin.create_topic(topic)
    line = lines(node, topic)[0]
    assert "is refused ('bob' may not create topic" in line
    assert line.endswith(f"by 'bob' from ADDRESS over {door}")


def test_every_kind_of_change_has_a_line_and_no_secret_is_in_it(node: ServerProcess) -> None:
    rule = AccessRule("carl", "topic", "audited", "read")
    with braidlog.connect(url(node, "kafka")) as client:
        admin = client.admin
        admin.create_topic("audited")
        for _ in range(3):
            client.producer().send_and_wait("audited", b"x", partition=0)
        admin.alter_topic("audited", {"retention.ms": "60000"}, partitions=2)
        admin.trim("audited", 0, 2)
        admin.reset_group("audited-group", "audited", {0: 2})
        admin.delete_group("audited-group")
        admin.set_password("audited-user", "a-password-of-mine")
        admin.delete_user("audited-user")
        admin.add_rule(rule)
        admin.delete_rule(rule)
        admin.set_quota(Quota(user="audited-user", append_bytes_per_second=1000))
        admin.delete_topic("audited")
        with pytest.raises(ClientError):
            admin.delete_topic("audited")
    said = [line.removesuffix(": by 'ann' from ADDRESS over kafka") for line in lines(node, "")]
    for words in (
        "topic audited settings changed",
        "topic audited: partitions increased to 2",
        "records of audited/0 below 2 are deleted",
        "group audited-group deleted",
        "user audited-user password changed",
        "user audited-user deleted",
        "rule added: carl may read audited",
        "rule dropped: carl may read audited",
        "quotas of user audited-user set",
        "topic audited deleted",
    ):
        assert words in said, said
    assert "DeleteTopics changed nothing" in said, said
    assert "a-password-of-mine" not in node.errors()


def test_a_snapshot_of_keys_that_is_refused_has_a_line(node: ServerProcess) -> None:
    with kv.connect(url(node, "mayfly", "bob")) as store, pytest.raises(ClientError):
        store.snapshot()
    assert lines(node, "Snapshot") == [
        "Snapshot is refused ('bob' may not administer the cluster (operation 'cluster')): by 'bob' from ADDRESS over mayfly"
    ]


def test_a_name_cannot_make_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "braidlog.audit"):
        Actor("ann", "here", "console").write("Delete key a\nb\u2028c\x1b.")
    assert caplog.messages == [r"Delete key a\nb\u2028c\x1b.: by 'ann' from here over console"]


def test_what_reads_or_writes_records_has_none(node: ServerProcess) -> None:
    with braidlog.connect(url(node, "kafka")) as client:
        client.admin.create_topic("plain")
        client.producer().send_and_wait("plain", b"x")
        client.admin.list_topics()
        client.admin.lag("plain-readers", "plain")
    assert all("topic plain created" in line or "CreateTopics" in line for line in lines(node, "plain"))
