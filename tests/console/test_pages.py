"""The page of the cluster, in a browser and without: two nodes, one of which is killed. One that is alone: `test_browser.py`."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from tests.console.asking import ask, samples
from tests.console.browsing import MILLISECONDS_MAX, chromium, opened
from tests.console.waiting import until
from tests.server.etcd.members import members

import braidlog
from braidlog.console.pages import story_steps
from braidlog.model.reporting.node_report import EventReport
from braidlog.testing.cluster_process import ClusterProcess

expect.set_options(timeout=MILLISECONDS_MAX)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("cluster")
    with (
        members(folder, 1) as (etcd,),
        ClusterProcess(folder / "nodes", etcd.url, numbers=(1, 2), admin=True) as nodes,
    ):
        with braidlog.connect(nodes.url("kafka")) as client:
            client.admin.create_topic("orders", 2)
            until(lambda: {each.leader for each in client.admin.describe_cluster().partitions} == {1, 2})
        yield nodes


def test_a_fail_over_is_seen_and_told_as_a_time_line(browser: Browser, cluster: ClusterProcess) -> None:
    """The page is open all the time, and is not loaded again."""
    with opened(browser, f"{cluster[1].admin_url}/cluster") as page:
        expect(page.locator(".head .pill")).to_have_text("2 of 2 nodes alive")
        row = page.locator("#nodes tr[data-key='node-2']")
        expect(row).to_contain_text(f"127.0.0.1:{cluster[2].ports['kafka']}")
        expect(page.locator("#events li").filter(has_text="topic orders created")).to_have_count(1)
        expect(page.locator("#weak")).to_contain_text("All partitions have a leader")
        assert figure(cluster, "braidlog_cluster_nodes", state="alive") == 2
        cluster[2].kill()
        expect(row.locator(".pill").first).to_have_text("fenced")
        expect(page.locator("#weak tbody tr")).to_have_count(2)
        expect(page.locator("#events li").first).to_be_visible()
        page.locator("#weak a").first.click()
        turn = page.locator(".story .turn").filter(has_text=re.compile(r"node 1 leads, epoch \d+ \(was node 2\)"))
        page.goto(f"{cluster[1].admin_url}/cluster/orders/{led_by_two(cluster)}")
        expect(turn).to_have_count(1)
        expect(page.locator(".story li").filter(has_text="node 2 fenced")).to_have_count(1)
    assert figure(cluster, "braidlog_cluster_leader_changes_total", cause="fenced") == 1
    assert figure(cluster, "braidlog_cluster_under_replicated_partitions") == 2
    assert figure(cluster, "braidlog_cluster_leaders") == 2
    assert figure(cluster, "braidlog_cluster_etcd_up") == 1
    assert figure(cluster, "braidlog_cluster_etcd_seconds_count") > 0


def figure(cluster: ClusterProcess, name: str, **labels: str) -> float:
    """As node 1 tells it."""
    return samples(ask(f"{cluster[1].admin_url}/metrics").text)[name, frozenset(labels.items())]


def led_by_two(cluster: ClusterProcess) -> int:
    """The partition that node 2 led when it was killed."""
    with braidlog.connect(f"kafka://127.0.0.1:{cluster[1].ports['kafka']}") as client:
        found = client.admin.cluster_events()
    return next(each.partition or 0 for each in found if "(was node 2)" in each.words)


def test_what_is_not_known_is_not_found(cluster: ClusterProcess) -> None:
    answer = ask(f"{cluster[1].admin_url}/cluster/nothing/0")
    assert (answer.status, "No events of partition nothing/0." in answer.text) == (404, True)


def test_steps_are_in_order_with_the_time_between_them() -> None:
    def event(seq: int, time_ms: int) -> EventReport:
        return EventReport(seq, 0, time_ms, "FenceNode", "", -1, is_turn=False, words="")

    found = story_steps([event(4, 900), event(3, 1_250), event(2, 1_000), event(1, 0)])
    assert [(step.event.seq, step.seconds) for step in found] == [(1, None), (2, None), (3, 0.25), (4, 0.0)]
    assert story_steps([]) == []
