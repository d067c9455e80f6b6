"""Consoles of three nodes: every page and action works on each of them, wherever leaders and coordinators are."""

import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import msgspec
import pytest
from playwright.sync_api import Browser, Page, Response, expect
from tests.cli.braid import Braid
from tests.console.asking import ask
from tests.console.browsing import MILLISECONDS_MAX, chromium, close, confirm
from tests.console.people import ADA, OLGA, SETTINGS, VERA, connected, looking, visitor
from tests.console.waiting import until
from tests.server.etcd.members import members
from tests.server.test_node_reporter import Setting

import braidlog
from braidlog import kv
from braidlog.console.cluster_view import merged, others_of
from braidlog.console.node_client import NodeError
from braidlog.console.rendering import UNKNOWN
from braidlog.coordinator.shards import shard_for_name
from braidlog.model.reporting.health_checks import health_checks
from braidlog.model.reporting.node_report import (
    FENCED,
    GroupReport,
    LagReport,
    NodeReport,
    PartitionReport,
    Snapshot,
    UnderReplicatedPartition,
)
from braidlog.testing.cluster_process import NODES, ClusterProcess
from braidlog.testing.server import ServerProcess

expect.set_options(timeout=MILLISECONDS_MAX)

PARTITIONS = 6
RECORDS = 24
SCHEMA = json.dumps({"type": "record", "name": "O", "fields": [{"name": "n", "type": "long"}]})
PROBES = [f"probe-{number}" for number in range(24)]
"""Groups that show who coordinates what."""
SHARDS = {shard_for_name(name) for name in PROBES}
LONELY = "lonely"
"""A topic whose one replica is on node 3."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """All three lead some partition of `orders`, and coordinate some shard."""
    folder = tmp_path_factory.mktemp("consoles")
    (folder / "settings.toml").write_text(SETTINGS)
    arguments = ("--config", str(folder / "settings.toml"))
    with (
        members(folder, 1) as (etcd,),
        ClusterProcess(folder / "nodes", etcd.url, *arguments, admin=True) as nodes,
        connected(nodes[1]) as client,
    ):
        client.admin.create_topic("orders", PARTITIONS)
        client.admin.create_topic(LONELY)
        producer = client.producer()
        for number in range(RECORDS):
            producer.send("orders", b'{"order": %d}' % number, partition=number % PARTITIONS)
        producer.send_and_wait(LONELY, b"here")
        producer.flush()
        client.admin.reset_group("first", "orders", {0: 1})
        client.admin.move_partitions({(LONELY, 0): [3]})
        with kv.connect(url(nodes[1], "mayfly")) as store:
            store.set("made", "before")
        for name in PROBES:
            client.admin.reset_group(name, "orders", {0: 1})
        until(lambda: set(leaders(nodes[1], "orders").values()) == {*NODES})
        until(lambda: set(coordinators(nodes[1], NODES).values()) == {*NODES})
        until(lambda: replicas(nodes[1], LONELY) == [(3,)])
        yield nodes


def url(node: ServerProcess, dialect: str) -> str:
    return f"{dialect}://{ADA}:{ADA}-token@127.0.0.1:{node.ports[dialect]}"


def leaders(node: ServerProcess, topic: str) -> dict[int, int | None]:
    with connected(node) as client:
        found = client.admin.describe_cluster().partitions
    return {each.partition: each.leader for each in found if each.topic == topic}


def replicas(node: ServerProcess, topic: str) -> list[tuple[int, ...]]:
    with connected(node) as client:
        return [each.replicas for each in client.admin.describe_cluster().partitions if each.topic == topic]


def coordinators(node: ServerProcess, numbers: Sequence[int]) -> dict[int, int]:
    """Shard → the node that coordinates the probes in it."""
    with connected(node) as client:
        told = {number: client.admin.describe_node(number).snapshot.groups for number in numbers}
    return {shard_for_name(each.group): number for number in numbers for each in told[number] if each.group in PROBES}


class Visit(NamedTuple):
    """Somebody at one console; `tag` tells what is made then from all else, `shards` are those of the probes."""

    page: Page
    node: ServerProcess
    tag: str
    shards: dict[int, int]

    def show(self, path: str) -> Response | None:
        return self.page.goto(f"{self.node.admin_url}{path}")

    def names(self, prefix: str) -> list[str]:
        """One for each node that coordinates anything, which keeps it."""
        found: dict[int, str] = {}
        for number in itertools.count():
            name = f"{prefix}-{self.tag}-{number}"
            if (owner := self.shards.get(shard_for_name(name))) is not None:
                found.setdefault(owner, name)
            if len(found) == len(set(self.shards.values())):
                return list(found.values())
        raise AssertionError


def do(page: Page, form: str, words: str, done: str, **fields: str) -> None:
    """Fill a form, say yes, and go on to what it shows then."""
    for name, value in fields.items():
        field = page.locator(f"{form} [name={name}]")
        (field.select_option if field.evaluate("each => each.tagName") == "SELECT" else field.fill)(value)
    page.locator(f"{form} button").last.click()
    confirm(page, words, done)
    close(page)


# -- what nodes report ------------------------------------------------------------------------------------------------


def report(
    *partitions: PartitionReport, groups: Sequence[str] = (), lags: Sequence[LagReport] = (), **cluster: object
) -> Snapshot:
    """Of node 1 of three, of which node 3 is fenced."""
    base = Setting().take()[0]
    states = zip(NODES, ("alive", "alive", FENCED), strict=True)
    rows = [NodeReport(number, state, "", {}, 0, 0, 0) for number, state in states]
    replaced = msgspec.structs.replace(base.cluster, is_alone=False, own=1, nodes=rows, **cluster)
    found = [GroupReport(name, "Empty", 0, "", 0) for name in groups]
    return msgspec.structs.replace(base, partitions=[*partitions], groups=found, lags=[*lags], cluster=replaced)


def test_a_partition_is_shown_as_its_leader_has_it_and_groups_of_all_coordinators() -> None:
    follower, leader = PartitionReport("t", 0, 0, 5), PartitionReport("t", 0, 2, 9, is_led=True)
    own = report(follower, groups=["a"], lags=[LagReport("a", "t", 0, 4, 5, 1)])
    other = report(leader, groups=["b"], lags=[LagReport("b", "t", 0, None, -1, 0)])
    for mine, theirs in ((own, other), (other, own)):
        found = merged(mine, {2: theirs})
        assert found.partitions == [leader]
        assert {each.group for each in found.groups} == {"a", "b"}
        assert [(each.group, each.end_offset, each.lag) for each in found.lags] == [("a", 9, 5), ("b", 9, 7)]
        assert found.silent == {}


def test_what_nobody_reports_is_named() -> None:
    own = report(PartitionReport("t", 0, is_led=True), weak=[UnderReplicatedPartition("gone", 3, None, (3,), (3,), 1)])
    found = merged(own, {2: NodeError("node 2 cannot be reached")})
    assert found.silent == {2: "node 2 cannot be reached"}
    assert [(each.topic, each.partition, each.fault) for each in found.partitions] == [
        ("gone", 3, "no leader: replicas are on node 3"),
        ("t", 0, ""),
    ]
    assert others_of(own) == [2]


def test_shards_that_no_coordinator_serves_are_counted() -> None:
    own = msgspec.structs.replace(report(groups=["a"]), shards=(5, 16), warnings={"clock": "late"})
    other = msgspec.structs.replace(own, shards=(11, 16))
    assert merged(own, {2: other}).warnings == {"clock": "late"}
    assert (
        merged(own, {2: NodeError("gone")})
        .warnings["coordinators"]
        .startswith("11 of 16 coordinator shards are unavailable")
    )


def test_dead_nodes_and_weak_partitions_are_told_and_the_node_is_ready() -> None:
    weak = [UnderReplicatedPartition("t", number, None if number else 1, (1, 3), (1,), 1) for number in range(7)]
    checks = health_checks(report(weak=weak, weak_left_out=3, leaderless=6))
    assert {each.name: each.reason for each in checks if each.name in ("nodes", "replicas")} == {
        "nodes": "1 of 3 nodes fenced: 3",
        "replicas": "under-replicated=10 leaderless=6: t/0, t/1, t/2, t/3, t/4 and 5 more",
    }
    assert all(each.ok for each in checks if each.name != "keyvalue")


# -- what a person does on one node -----------------------------------------------------------------------------------


def look_at_records(visit: Visit) -> None:
    page, node, tag = visit.page, visit.node, visit.tag
    visit.show("/topics/orders")
    rows = page.locator("#records > li")
    expect(page.locator("#live tbody tr")).not_to_have_count(0)
    for at in range(PARTITIONS):
        with connected(node) as client:
            client.producer().send_and_wait("orders", f"live {tag} {at}".encode(), partition=at)
    for at in range(PARTITIONS):
        expect(rows.filter(has_text=f"live {tag} {at}")).to_have_count(1)
    page.locator("[name=live]").uncheck()
    page.locator("#tail-form [name=from]").select_option("earliest")
    page.locator("#tail-form [name=filter]").fill("value.order == 7")
    page.locator("#tail-form [name=filter]").press("Enter")
    expect(rows).to_have_count(1)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download JSONL").click()
    assert [json.loads(line)["value"] for line in waiting.value.path().read_text().splitlines()] == ['{"order": 7}']
    expect(page.locator("#records .fault")).to_have_count(0)


def produce(visit: Visit) -> None:
    page, tag = visit.page, visit.tag
    visit.show("/topics/orders")
    page.locator("#produce summary").click()
    stored = set()
    choices = [("", str(number)) for number in range(PARTITIONS)] + [(f"{tag}-{number}", "") for number in range(6)]
    for number, (key, partition) in enumerate([*choices, ("", "")]):
        page.locator("#produce-form [name=key]").fill(key)
        page.locator("#produce-form [name=partition]").select_option(partition)
        page.locator("#produce-form [name=value]").fill(f"produced {tag} {number}")
        before = page.locator("#said").inner_text()
        page.get_by_role("button", name="Produce", exact=True).click()
        expect(page.locator("#said")).not_to_have_text(before)
        found = re.search(r"Stored: partition (\d+), offset \d+", page.locator("#said").inner_text())
        assert found is not None, page.locator("#said").inner_text()
        stored.add(int(found[1]))
    assert stored == {*range(PARTITIONS)}


def change_a_topic(visit: Visit) -> None:
    page, node, tag = visit.page, visit.node, visit.tag
    visit.show("/topics")
    page.locator("#create summary").click()
    do(page, "#create form", "Create topic", " created.", topic=f"made-{tag}", partitions="3")
    page.locator("#change summary").click()
    do(page, "#partitions-form", "Add 3 partitions", "now has 6 partitions", partitions="6")
    expect(page.locator("#live tbody tr")).to_have_count(6)
    with connected(node) as client:
        for at in range(6):
            client.producer().send_and_wait(f"made-{tag}", b"x", partition=at)
    page.locator("#change summary").click()
    do(page, "#trim-form", "Delete the records", "6 records")
    page.locator("#settings-of-topic summary").click()
    do(page, "#setting-form", "to 60000", " set.", setting="retention.ms", value="60000")
    page.locator("#change summary").click()
    do(page, "#delete-form", "Delete topic", " deleted.")


def change_groups(visit: Visit) -> None:
    """One that each node coordinates."""
    page, node = visit.page, visit.node
    names = visit.names("group")
    with connected(node) as client:
        for name in names:
            client.admin.reset_group(name, "orders", dict.fromkeys(range(PARTITIONS), 1))
    for name in names:
        visit.show("/groups")
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("#live tbody tr")).to_have_count(PARTITIONS)
        expect(page.locator("#lag-records")).to_have_text(re.compile(r"\d"))
        page.locator("#change summary").click()
        do(page, "#reset-form", "Reset the offsets of group", "Offsets of group", to="latest")
        expect(page.locator("#lag-records")).to_have_text("0")
        page.locator("#change summary").click()
        do(page, "#delete-form", "Delete group", " deleted.")


def change_transactions(visit: Visit) -> None:
    page, node = visit.page, visit.node
    for name in visit.names("tx"):
        with (
            connected(node) as client,
            client.producer(transactional_id=name, transaction_timeout=600) as producer,
            suppress(braidlog.ClientError),  # it is aborted before its end
            producer.transaction(),
        ):
            for at in range(PARTITIONS):
                producer.send("orders", b"never", partition=at)
            producer.flush()
            visit.show("/transactions?topic=orders")
            expect(page.locator("#producers tbody tr").filter(has_text=re.compile("\\d"))).not_to_have_count(0)
            page.get_by_role("link", name=name, exact=True).click()
            do(page, "#abort-form", "Abort the transaction", " aborted.")


def change_keys(visit: Visit) -> None:
    page, tag = visit.page, visit.tag
    visit.show("/keys")
    expect(page.get_by_role("link", name="made", exact=True)).to_be_visible()
    page.locator("#add summary").click()
    do(page, "#key-form", "Add key", " saved.", key=f"key-{tag}", value="red")
    expect(page.locator("dd pre")).to_have_text("red")
    page.locator("#change summary").click()
    do(page, "#expire-form", "expire in 9,000 seconds", "Done", ttl="9000")
    page.locator("#change summary").click()
    do(page, "#delete-form", "Delete key", " deleted.")


def change_access(visit: Visit) -> None:
    page, tag = visit.page, visit.tag
    visit.show("/access")
    do(page, "#user-form", "Create user", "Password of user", user=f"user-{tag}", password="long enough")
    do(
        page,
        "#rule-form",
        "Add a rule",
        "Rule added",
        principal=f"user-{tag}",
        name=tag,
        operation="read",
        resource="topic",
    )
    do(page, "#quota-form", "Set the quota of user", "Quota set", user=f"user-{tag}", append_bytes_per_second="1000000")
    for part, done in (("quotas", "removed"), ("rules", "deleted"), ("users", "deleted")):
        page.locator(f"#{part} tr").filter(has_text=f"user-{tag}").get_by_role("button").first.click()
        confirm(page, f"user-{tag}", done)
        close(page)


def register_a_schema(visit: Visit) -> None:
    page, tag = visit.page, visit.tag
    visit.show("/schemas")
    page.locator("#register summary").click()
    do(page, "#register form", "Register a schema", " registered.", subject=f"{tag}-value", schema=SCHEMA)
    expect(page.locator("pre").first).to_contain_text('"name": "n"')


def open_every_page(visit: Visit) -> None:
    """Each is shown, though perhaps not before a leader is found that a slow machine has fenced."""
    paths = ["", "topics", "topics/orders", "groups", "groups/first", "keys", f"keys/one?hex={b'made'.hex()}"]
    paths += ["transactions", "access", "connections", "cluster", "cluster/orders/0", "schemas", "spark", "settings"]
    for path in paths:
        until(lambda path=path: (found := visit.show(f"/{path}")) is not None and found.status == 200)  # type: ignore[misc]
        expect(visit.page.locator("#sentence")).to_have_count(0)


LOOKS = (open_every_page, look_at_records, produce)
ACTIONS = (change_a_topic, change_groups, change_transactions, change_keys, change_access, register_a_schema)


def use(visit: Visit, ways: Sequence[Callable[[Visit], None]]) -> None:
    for way in ways:
        way(visit)


def act_without_a_browser(visit: Visit) -> None:
    """Each action, on what each of the nodes leads or coordinates."""
    ada, tag = visitor(visit.node, ADA), visit.tag

    def act(action: str, **fields: str) -> None:
        said = ada.act(action, **fields).text
        assert 'class="done"' in said, (action, fields, said)

    topic, user = f"acted-{tag}", f"acting-{tag}"
    act("topic-create", topic=topic, partitions="3")
    act("topic-partitions", topic=topic, partitions="6")
    with connected(visit.node) as client:
        for at in range(6):
            client.producer().send_and_wait(topic, b"x", partition=at)
        for name in visit.names("acted"):
            client.admin.reset_group(name, topic, dict.fromkeys(range(6), 1) | {5: 0})
    until(lambda: all(f"/groups/{name}" in ada.get("/groups").text for name in visit.names("acted")))
    for name in visit.names("acted"):
        assert ada.get(f"/groups/{name}").text.count(f'data-key="{topic}/') == 6
        act("group-reset", group=name, topic=topic, to="latest")
        act("group-delete", group=name)
    act("topic-trim", topic=topic)
    act("topic-setting", topic=topic, setting="retention.ms", value="60000")
    for at in range(8):
        act("key-put", key=f"{tag}-{at}", value="red")
        act("key-expire", key=f"{tag}-{at}", ttl="9000")
        act("key-delete", key=f"{tag}-{at}")
    act("schema-register", subject=f"acted-{tag}", schema=SCHEMA)
    act("user-set", user=user, password="long enough")
    act("rule-add", principal=user, resource="topic", name=tag, operation="read")
    act("quota-set", user=user, append_bytes_per_second="1000000")
    act("quota-remove", user=user)
    act("rule-delete", principal=user, resource="topic", name=tag, operation="read")
    act("user-delete", user=user)
    act("topic-delete", topic=topic)


# -- three nodes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", NODES)
def test_every_page_and_action_of_each_node(browser: Browser, cluster: ClusterProcess, number: int) -> None:
    node = cluster[number]
    with looking(browser, node, "/cluster", forgiven="404|503") as page:
        expect(page.locator(".head .pill")).to_have_text("3 of 3 nodes alive")
        visit = Visit(page, node, f"all-{number}", coordinators(node, NODES))
        use(visit, LOOKS + ACTIONS if number == 1 else (*LOOKS, act_without_a_browser))
    assert "Traceback" not in node.errors()


@pytest.mark.parametrize("number", NODES)
def test_the_leader_judges_who_has_signed_in(cluster: ClusterProcess, number: int) -> None:
    vera, olga = visitor(cluster[number], VERA), visitor(cluster[number], OLGA)
    for partition in range(PARTITIONS):
        path = f"/api/topics/orders/{partition}/0/value"
        assert (vera.get(path).status, olga.get(path).status) == (403, 200)
        refused = vera.post("/topics/orders/records", {"value": "x", "partition": str(partition)}).text
        assert "&#39;vera&#39; may not write topic &#39;orders&#39;" in refused
    for name in PROBES[:6]:
        assert "GROUP_AUTHORIZATION_FAILED" in vera.act("group-delete", group=name).text


def test_the_rest_works_while_a_node_hangs(browser: Browser, cluster: ClusterProcess) -> None:
    """It accepts connections and answers nothing: what it led and coordinated is asked of others once it is fenced."""
    told = set()

    def is_fenced() -> bool:
        told.add(ada.get(f"/topics/{LONELY}").status)
        return "1 of 3 nodes fenced: 3" in ada.get("/").text

    def knows_all_times(group: str) -> bool:
        """Of the first record that a group lacks in each partition."""
        page = ada.get(f"/groups/{group}").text
        return page.count('data-key="orders/') == PARTITIONS and f'<td class="n">{UNKNOWN}</td>' not in page

    ada = visitor(cluster[1], ADA)
    with connected(cluster[1]) as client:
        for at, name in enumerate(("timed", "timed-later"), 2):
            client.admin.reset_group(name, "orders", dict.fromkeys(range(PARTITIONS), at))
    until(lambda: knows_all_times("timed"))
    with stopped(cluster[3]):
        until(is_fenced)
        assert told <= {200, 503}, "it exists"
        shards = until(lambda: found if len(found := coordinators(cluster[1], (1, 2))) == len(SHARDS) else None)
        until(lambda: knows_all_times("timed-later"))
        for number in (1, 2):
            with looking(browser, cluster[number], "/", forgiven="404|503") as page:
                visit = Visit(page, cluster[number], f"hung-{number}", shards)
                use(visit, (*LOOKS, act_without_a_browser))
    until(lambda: leaders(cluster[1], LONELY) == {0: 3})


@contextmanager
def stopped(node: ServerProcess) -> Iterator[None]:
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


def test_the_rest_works_and_says_so_while_a_node_is_dead(browser: Browser, cluster: ClusterProcess) -> None:
    """It kills a node, and the next test another."""
    with ExitStack() as stack:
        pages = [stack.enter_context(looking(browser, cluster[number], "/")) for number in (1, 2)]
        cluster[3].kill()
        for page in pages:
            expect(page.locator(".fault").filter(has_text="nodes")).to_contain_text("1 of 3 nodes fenced: 3")
            expect(page.locator(".fault").filter(has_text="replicas")).to_contain_text("leaderless=1")
    for number, ways in ((1, (*LOOKS, act_without_a_browser)), (2, LOOKS + ACTIONS)):
        shards = until(lambda: found if len(found := coordinators(cluster[1], (1, 2))) == len(SHARDS) else None)
        with looking(browser, cluster[number], "/", forgiven="404|503") as page:
            use(Visit(page, cluster[number], f"dead-{number}", shards), ways)
        told = Braid().json("health", "--url", cluster[number].admin_url, "--timeout", "60", schema="health")
        assert told["status"] == "ready"
        assert {"nodes", "replicas"} <= {each["name"] for each in told["checks"] if each["ok"]}
    sees_no_leader(browser, cluster[1])
    assert "Traceback" not in cluster[1].errors() + cluster[2].errors()


def sees_no_leader(browser: Browser, node: ServerProcess) -> None:
    sentence = f"{LONELY}/0: this partition has no leader now (LEADER_NOT_AVAILABLE)"
    with looking(browser, node, f"/topics/{LONELY}", forgiven="503") as page:
        expect(page.locator("#live tbody")).to_contain_text("no leader: replicas are on node 3")
        expect(page.locator("#records .fault")).to_have_text(sentence)
        page.goto(f"{node.admin_url}/api/topics/{LONELY}/download?follow=0&from=earliest")
        expect(page.locator("#sentence")).to_have_text(sentence)
    ada = visitor(node, ADA)
    answer = ask(f"{node.admin_url}/api/topics/{LONELY}/download?follow=0", cookie=ada.cookie)
    assert (answer.status, answer.text) == (503, f"{sentence}\n")
    assert sentence in ada.post(f"/topics/{LONELY}/records", {"value": "x"}).text
    assert f"Topic {LONELY} deleted." in ada.act("topic-delete", topic=LONELY).text


def test_a_group_whose_coordinator_cannot_serve_is_not_called_missing(cluster: ClusterProcess) -> None:
    """The last of this file: of the replicas of a shard one is left, and two have to be in sync."""
    cluster[2].kill()
    ada = visitor(cluster[1], ADA)
    until(lambda: "shards are unavailable" in ada.get("/groups").text)
    answers = [ada.get(f"/groups/{name}") for name in PROBES]
    assert {each.status for each in answers} <= {200, 503}
    assert any(each.status == 503 and "may be unavailable" in each.text for each in answers)
    assert "shards are unavailable" in ada.get("/").text
