"""Every member of etcd says how it is; the member of a node that was removed is removed as well."""

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.server.etcd.members import Member, members

from braidlog.cluster.etcd.port import EtcdAwayError
from braidlog.model.errors import BrokerError
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.etcd_metadata import ClusterStore
from braidlog.server.etcd.gateway import Gateway, GatewaySettings
from braidlog.server.etcd.health import MemberHealth, ask_members
from braidlog.tasks import Tasks
from braidlog.tools.doctor import Status, etcd_findings

SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with members(tmp_path_factory.mktemp("etcd"), 3) as started:
        yield started


def asked(etcd: list[Member]) -> dict[str, MemberHealth]:
    found = asyncio.run(ask_members(ClusterConfig(etcd=[each.url for each in etcd])))
    return {each.name: each for each in found}


def told(found: dict[str, MemberHealth]) -> list[tuple[Status, str, str]]:
    rows = [(each.number, each.name, each.url, each.trouble) for each in found.values()]
    return [(each.status, each.detail, each.remedy) for each in etcd_findings(rows)]


def test_members_are_asked_one_by_one_and_the_one_of_a_removed_node_is_removed(
    three: list[Member], caplog: pytest.LogCaptureFixture
) -> None:
    healthy = asked(three)
    assert {name: each.trouble for name, each in healthy.items()} == {"m0": "", "m1": "", "m2": ""}
    assert told(healthy) == [(Status.OK, "3 of 3 members are healthy, 2 required", "")]

    three[2].kill()
    found, until = asked(three), time.monotonic() + SECONDS_MAX
    while [name for name, each in found.items() if each.trouble] != ["m2"]:  # the others elect a leader meanwhile
        assert time.monotonic() < until, found
        found = asked(three)
    dead = found["m2"]
    down, margin = told(found)
    assert down[:2] == (Status.WARN, f"member m2 {dead.url} {dead.trouble}")
    assert f"etcdctl member remove {dead.number:x}" in down[2]
    assert margin[0] is Status.WARN
    assert margin[1] == "2 of 3 members are healthy, 2 required: another failure makes the metadata read-only"

    async def remove(*names: str) -> None:
        config = ClusterConfig(etcd="embedded")
        store = ClusterStore(config, cast("Any", None), cast("Any", None), "m0", Tasks())
        urls = [each.url for each in three]
        store._gateway = Gateway(
            GatewaySettings(endpoints=urls, read_seconds_max=SECONDS_MAX, write_seconds_max=SECONDS_MAX)
        )
        for name in names:
            await store.remove_member(name)
        store._gateway.close()

    asyncio.run(remove("m2", "m7"))
    assert "etcd member m2 removed" in caplog.text
    assert set(asked(three[:2])) == {"m0", "m1"}


def test_no_member_answers_or_one_cannot_be_removed() -> None:
    with pytest.raises(EtcdAwayError):
        asyncio.run(ask_members(ClusterConfig(etcd="http://127.0.0.1:1")))

    async def refuse() -> Any:
        raise EtcdAwayError("nothing answers")

    store = ClusterStore(ClusterConfig(etcd="embedded"), *cast("Any", (None, None, "1", Tasks())))
    store._gateway = cast("Any", SimpleNamespace(members=refuse))
    with pytest.raises(
        BrokerError, match=r"node 3 was removed, but its etcd member may remain: .* run: etcdctl member remove ID"
    ):
        asyncio.run(store.remove_member("3"))


def test_a_member_that_never_started_and_too_few_members() -> None:
    assert [each.status for each in etcd_findings([(10, "1", "u", ""), (11, "", "", "has not started yet")])] == [
        Status.WARN,
        Status.FAIL,
    ]
    (alone,) = etcd_findings([(10, "1", "u", "")])
    assert alone.status is Status.OK
