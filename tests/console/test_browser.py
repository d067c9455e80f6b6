"""The console in a browser: what moves while a log moves, what is typed and comes back, what must not run."""

import itertools
import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect
from tests.console.asking import ask
from tests.console.browsing import MILLISECONDS_MAX, PAGES, opened
from tests.console.test_spark import TABLES, stage_report
from tests.console.waiting import until

import braidlog
from braidlog import kv
from braidlog.model.reporting.node_report import QueryProgress
from braidlog.spark.pipeline.progress_reporting import AdminPort
from braidlog.testing.server import ServerProcess

expect.set_options(timeout=MILLISECONDS_MAX)

SCRIPT = '<script>document.title="run"</script><img src=x onerror="document.title=\'run\'">'


@pytest.fixture(scope="module")
def filled(node: ServerProcess) -> ServerProcess:
    """A topic with records, a group that is behind, a few keys."""
    with braidlog.connect(kafka(node)) as client:
        client.admin.create_topic("orders", 2)
        producer = client.producer()
        for number in range(20):
            producer.send("orders", f'{{"order": {number}}}'.encode(), key=b"k", partition=number % 2)
        producer.flush()
        consumer = client.consumer()
        consumer.assign("orders", [0], group="billing")
        consumer.poll(max_records=5)
        consumer.commit()
    with kv.connect(f"mayfly://127.0.0.1:{node.ports['mayfly']}") as store:
        store.set("greeting", SCRIPT)
        store.rpush("queue", "one", "two")
        store.hset("user:1", {"name": "Ada"})
    return node


def kafka(node: ServerProcess) -> str:
    return f"kafka://127.0.0.1:{node.ports['kafka']}"


@contextmanager
def producing(node: ServerProcess, topic: str) -> Iterator[threading.Event]:
    """A producer beside the browser, until the test is done."""
    done = threading.Event()

    def run() -> None:
        with braidlog.connect(kafka(node)) as client:
            producer = client.producer()
            number = 0
            while not done.wait(0.05):
                producer.send_and_wait(topic, f"moving {number}".encode())
                number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        done.set()
        thread.join()


def test_the_tail_moves_while_a_producer_runs(browser: Browser, filled: ServerProcess) -> None:
    with braidlog.connect(kafka(filled)) as client:
        client.admin.create_topic("moving")
    with producing(filled, "moving"), opened(browser, f"{filled.admin_url}/topics/moving") as page:
        rows = page.locator("#records > li")
        expect(rows.filter(has_text="moving").first).to_be_visible()
        first = rows.first.inner_text()
        expect(rows.first).not_to_have_text(first)
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#tail-state")).to_contain_text("waiting")
        standing = rows.first.inner_text()
        expect(page.locator("#tail-state")).to_have_text(re.compile("[1-9][0-9]* waiting"))
        assert rows.first.inner_text() == standing
        page.get_by_role("button", name="Resume").click()
        expect(rows.first).not_to_have_text(standing)


def test_a_node_that_is_alone_says_so_and_how_to_get_three(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/cluster") as page:
        expect(page.locator("#alone")).to_contain_text("Single node. braid dev --nodes 3 starts three")
        expect(page.locator("#nodes")).to_have_count(0)
        expect(page.locator("#events li").filter(has_text="topic orders created")).to_have_count(1)


def test_a_records_value_as_json_and_hex_and_the_ways_to_choose_records(
    browser: Browser, filled: ServerProcess
) -> None:
    with opened(browser, f"{filled.admin_url}/topics/orders") as page:
        rows = page.locator("#records > li")
        expect(rows).to_have_count(20)
        page.locator("[name=contains]").fill('"order": 13')
        page.locator("[name=contains]").press("Enter")
        expect(rows).to_have_count(1)
        rows.first.locator(".line").click()
        expect(rows.first.locator("pre")).to_have_text('{\n  "order": 13\n}')
        rows.first.get_by_role("button", name="Hex").click()
        expect(rows.first.locator("pre")).to_contain_text("7b 22 6f 72 64 65 72 22 3a 20 31 33 7d")
        page.locator("[name=contains]").fill("")
        page.locator("[name=live]").uncheck()
        page.locator("#tail-form [name=partition]").select_option("1")
        page.locator("[name=from]").select_option("offset")
        page.locator("#tail-form [name=offset]").fill("7")
        page.locator("#tail-form [name=offset]").press("Enter")
        expect(rows).to_have_count(3)
        expect(rows.first).to_contain_text("1:7")
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Download JSONL").click()
        lines = waiting.value.path().read_text().splitlines()
        assert len(lines) == 3
        assert '"offset":7' in lines[0]
        page.get_by_role("button", name="Copy as").click()
        command = page.locator("[data-tail]").get_attribute("data-command")
        assert command is not None
    program, *words = shlex.split(command)
    assert program == "braid"
    done = subprocess.run(
        [sys.executable, "-m", "braidlog.cli", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert [json.loads(line)["offset"] for line in done.stdout.splitlines()] == [7, 8, 9]


def test_what_the_form_produces_comes_back_and_can_be_sent_again(browser: Browser, filled: ServerProcess) -> None:
    with braidlog.connect(kafka(filled)) as client:
        client.admin.create_topic("typed")
    with opened(browser, f"{filled.admin_url}/topics/typed") as page:
        page.locator("#produce summary").click()
        page.locator("#produce-form [name=key]").fill("schlüssel")
        page.locator("#produce-form [name=value]").fill('{"a": 1}\nline two')
        page.locator("#produce-form [name=headers]").fill("trace: 17")
        page.get_by_role("button", name="Produce", exact=True).click()
        expect(page.locator("#said")).to_contain_text("partition 0, offset 0")
        row = page.locator("#records > li").first
        expect(row).to_contain_text("schlüssel")
        row.locator(".line").click()
        expect(row).to_contain_text("trace: 17")
        row.get_by_role("button", name="Resend").click()
        page.get_by_role("button", name="Produce", exact=True).click()
        expect(page.locator("#said")).to_contain_text("partition 0, offset 1")
        page.locator("#produce-form [name=headers]").fill("no colon")
        page.get_by_role("button", name="Produce", exact=True).click()
        expect(page.locator("#said .fault")).to_contain_text("name: value")
    with braidlog.connect(kafka(filled)) as client:
        consumer = client.consumer()
        consumer.assign("typed")
        found = until(consumer.poll)
    assert [(each.key, each.value, each.headers) for each in found] == [
        ("schlüssel".encode(), b'{"a": 1}\nline two', (("trace", b"17"),))
    ] * 2


def test_a_script_in_a_record_or_a_key_is_shown_and_not_run(browser: Browser, filled: ServerProcess) -> None:
    with braidlog.connect(kafka(filled)) as client:
        client.admin.create_topic("hostile")
        client.producer().send_and_wait("hostile", SCRIPT.encode(), key=SCRIPT.encode(), headers=((SCRIPT, b"x"),))
        consumer = client.consumer()
        consumer.assign("hostile", group="<b>group</b>")
        until(consumer.poll)
        consumer.commit()
    with opened(browser, f"{filled.admin_url}/topics/hostile") as page:
        row = page.locator("#records > li").first
        expect(row.locator(".text")).to_have_text(SCRIPT)
        row.locator(".line").click()
        expect(row.locator("pre")).to_have_text(SCRIPT)
        assert page.locator("#records script, #records img").count() == 0
        assert page.title() != "run"
    with opened(browser, f"{filled.admin_url}/keys?prefix=greeting") as page:
        page.get_by_role("link", name="greeting").click()
        expect(page.locator("pre")).to_have_text(SCRIPT)
        assert page.locator("dd script, dd img").count() == 0
    with opened(browser, f"{filled.admin_url}/groups") as page:
        expect(page.get_by_role("link", name="<b>group</b>")).to_be_visible()
        assert page.title() != "run"


def test_the_lag_plot_moves(browser: Browser, filled: ServerProcess) -> None:
    with braidlog.connect(kafka(filled)) as client:
        client.admin.create_topic("lagging")
        producer = client.producer()
        for number in range(10):
            producer.send("lagging", b"%d" % number)
        producer.flush()
        consumer = client.consumer()
        consumer.assign("lagging", group="slow")
        consumer.poll(max_records=5)
        consumer.commit()
    with opened(browser, f"{filled.admin_url}/groups/slow") as page:
        plot = page.locator("[data-plot=lag]")
        expect(plot).to_have_attribute("data-last", "5")
        expect(page.locator("#lag-records")).to_have_text("5")
        expect(page.locator("#lag-seconds")).not_to_have_text("\u2013")
        with braidlog.connect(kafka(filled)) as client:
            client.producer().send_and_wait("lagging", b"one more")
        expect(plot).to_have_attribute("data-last", "6")
        assert int(plot.get_attribute("data-points") or 0) >= 2
        assert plot.locator("canvas").count() == 1


def test_a_page_per_pipeline(browser: Browser, filled: ServerProcess) -> None:
    """Its graph, its stages' rows, lag and last error, and a plot that goes on."""
    port = AdminPort(filled.admin_url)
    try:
        port(stage_report("silver", 1, end=20, latest=50))
        port(stage_report("dead-letters", 0, end=50, latest=50))
        with opened(browser, f"{filled.admin_url}/spark") as page:
            page.get_by_role("link", name="shop").first.click()
            row = page.locator("#stages tr[data-key=silver]")
            expect(row.locator("td.n")).to_have_text(["1", "10", "8", "0", "2", "30", re.compile(r"\d"), "20.0"])
            dead = page.locator("#stages tr[data-key=dead-letters] td.n")
            expect(dead).to_have_text(["0", "10", "8", "8", "2", "0", "0 ms", "20.0"])
            expect(page.locator("svg.graph .stage")).to_have_count(2)
            expect(page.locator("#tables code")).to_have_text(list(TABLES.values()))
            expect(page.locator("svg.graph .topic text")).to_have_text("orders")
            expect(page.locator("[data-plot=pipeline]")).to_have_attribute("data-last", "40")
            failed = QueryProgress("id of silver", "run", "shop.silver", "shop", "failed", "no room <left>")
            port(failed)
            expect(page.locator("#stages .fault")).to_have_text("no room <left>")
            expect(page.locator("[data-plot=pipeline]")).to_have_attribute("data-last", "20")
    finally:
        port.close()


def test_search_by_keyboard(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/") as page:
        page.keyboard.press("/")
        expect(page.locator("#search-words")).to_be_focused()
        page.keyboard.type("ord")
        expect(page.locator("#search-found a")).to_have_count(1)
        expect(page.locator("#search-found a.chosen")).to_contain_text("orders")
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics/orders")
        page.keyboard.press("Control+k")
        page.keyboard.type("billing")
        expect(page.locator("#search-found a.chosen")).to_contain_text("billing")
        page.keyboard.press("Enter")
        page.wait_for_url("**/groups/billing")


def test_the_wire_of_a_connection_is_decoded(browser: Browser, filled: ServerProcess) -> None:
    with braidlog.connect(f"rustlog://127.0.0.1:{filled.ports['rustlog']}") as client:
        client.admin.list_topics()
        with opened(browser, f"{filled.admin_url}/connections") as page:
            page.get_by_role("row").filter(has_text="rustlog").get_by_role("link", name="watch").click()
            page.wait_for_url("**/connections/*")
            rows = page.locator("#wire > li")
            done = threading.Event()

            def talk() -> None:
                while not done.wait(0.1):
                    client.admin.list_topics()

            thread = threading.Thread(target=talk)
            thread.start()
            try:
                expect(rows.filter(has_text="response").first).to_be_visible()
            finally:
                done.set()
                thread.join()
            page.get_by_role("button", name="Pause").click()  # no row comes before the first any more
            asked = rows.filter(has_text="request").first
            asked.locator(".line").click()
            fields = asked.locator("pre").inner_text()
            page.get_by_role("button", name="Show hex").click()
            expect(asked.locator("pre")).not_to_have_text(fields)
            page.locator("#wire-contains").fill("no such message")
            expect(rows.locator("visible=true")).to_have_count(0)


@pytest.mark.parametrize("path", PAGES)
def test_no_page_is_wider_than_a_small_phone_or_larger_than_120_kb(
    browser: Browser, filled: ServerProcess, path: str
) -> None:
    with opened(browser, "about:blank", width=380, height=800) as page:
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        sizes: list[float] = []
        hosts: set[str] = set()
        session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.goto(f"{filled.admin_url}{path}", wait_until="load")
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
        tops = page.locator("nav a:not(.brand)").evaluate_all("all => all.map((each) => each.offsetTop)")
        assert len(set(tops)) == 1, "navigation is one row"
        assert page.locator(".top").evaluate("each => each.offsetHeight") < 64
        assert page.locator(".brand img").evaluate("each => each.offsetWidth") == 22
        # What was loaded is told after the page is: by another session.
        until(lambda: len(sizes) > page.evaluate("performance.getEntriesByType('resource').length"))
        assert 20_000 < sum(sizes) < 120_000
        assert hosts == {filled.admin_url.removeprefix("http://")}, "everything comes from here"


def test_a_page_finds_the_node_that_comes_after_one_that_was_killed(browser: Browser, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", admin=True) as node:
        with braidlog.connect(kafka(node)) as client:
            client.admin.create_topic("again")
            client.producer().send_and_wait("again", b"before")
        with opened(browser, f"{node.admin_url}/topics/again", forgiven="ERR_|htmx:|503") as page:
            rows = page.locator("#records > li")
            expect(rows).to_have_count(1)
            node.kill()
            expect(page.locator("#tail-state")).to_contain_text("retrying")
            node.restart()
            with braidlog.connect(kafka(node)) as client:
                client.producer().send_and_wait("again", b"after")
            expect(rows).to_have_count(2)
            expect(rows.first).to_contain_text("after")


def test_a_page_says_that_the_node_does_not_answer_any_more(browser: Browser, tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", admin=True) as node,
        opened(browser, node.admin_url, forgiven="ERR_|htmx:|503") as page,
    ):
        live = page.locator("#live")
        expect(live.locator(".pill")).to_have_text("ready")
        expect(page.locator("#stale")).to_be_hidden()
        node.kill()
        expect(page.locator("#stale")).to_contain_text("The node does not answer: no connection. Retrying.")
        expect(live).to_have_css("filter", "grayscale(1)")
        node.restart()
        expect(page.locator("#stale")).to_be_hidden()
        expect(live).to_have_css("filter", "none")


def test_a_poll_that_fails_is_told_with_its_reason_until_one_succeeds(browser: Browser, filled: ServerProcess) -> None:
    """The node lives; its console could not ask it in time."""
    with opened(browser, filled.admin_url, forgiven="htmx:|503") as page:
        live = page.locator("#live")
        expect(live.locator(".pill")).to_have_text("ready")

        def refuse(route: Route) -> None:
            if "hx-request" in route.request.headers:
                route.fulfill(status=503, body="the node did not answer in 5 s")
            else:
                route.fallback()

        page.route("**/*", refuse)
        expect(page.locator("#stale")).to_contain_text("the node did not answer in 5 s. Retrying.")
        expect(live).to_have_css("filter", "grayscale(1)")
        page.unroute("**/*")
        expect(page.locator("#stale")).to_be_hidden()
        expect(live).to_have_css("filter", "none")


def test_figures_move_and_focus_selection_and_scrolling_stay(browser: Browser, filled: ServerProcess) -> None:
    with braidlog.connect(kafka(filled)) as client:
        client.admin.create_topic("figures")
    with opened(browser, f"{filled.admin_url}/topics", width=380) as page:
        row = page.locator("tr", has=page.get_by_role("link", name="figures", exact=True))
        row.get_by_role("link").focus()
        row.get_by_role("link").evaluate("each => getSelection().selectAllChildren(each)")
        page.locator(".scroll").evaluate("each => { each.scrollLeft = 30; }")
        before = row.locator("td").nth(1).inner_text()
        with braidlog.connect(kafka(filled)) as client:
            client.admin.create_topic("aaa-first")  # a row before it
            client.producer().send_and_wait("figures", b"one more")
        expect(page.get_by_role("link", name="aaa-first")).to_be_visible()
        expect(row.locator("td").nth(1)).not_to_have_text(before)
        expect(row.get_by_role("link")).to_be_focused()
        assert page.evaluate("getSelection().toString()") == "figures"
        assert page.locator(".scroll").evaluate("each => each.scrollLeft") == 30
        with braidlog.connect(kafka(filled)) as client:
            client.admin.delete_topic("aaa-first")
        expect(page.get_by_role("link", name="aaa-first")).to_have_count(0)
        expect(row.get_by_role("link")).to_be_focused()


def test_the_labels_of_a_plot_do_not_overlap(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, filled.admin_url, width=500) as page:
        expect(page.locator("[data-plot=rates]")).to_have_attribute("data-points", re.compile("[4-9]|[0-9]{2}"))
        page.evaluate("""() => {
            const { fillText, clearRect } = CanvasRenderingContext2D.prototype;
            let drawing = 0;
            window.drawn = [];
            CanvasRenderingContext2D.prototype.clearRect = function () {
              drawing += 1;
              return clearRect.apply(this, arguments);
            };
            CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
              if (/^[0-9:]{8}$/.test(text)) window.drawn.push([drawing, x, this.measureText(text).width]);
              return fillText.apply(this, arguments);
            };
        }""")
        for width in range(400, 900, 20):  # each draws it anew, with other distances
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        labels = page.evaluate("window.drawn")  # from left to right, of one drawing after the other
        pairs = itertools.pairwise(labels)
        apart = [(right - left, width) for (one, left, width), (other, right, _) in pairs if one == other]
        assert apart
        assert all(distance > width for distance, width in apart), labels


def test_light_and_dark(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/topics", dark=True) as page:
        html = page.locator("html")
        expect(html).to_have_attribute("data-theme", "dark")
        page.locator("#theme-button").click()
        expect(html).to_have_attribute("data-theme", "light")
        page.reload()
        expect(html).to_have_attribute("data-theme", "light")


def test_a_topic_that_is_a_table_says_how_far_that_is(filled: ServerProcess) -> None:
    with braidlog.connect(kafka(filled)) as client:
        client.admin.create_topic("tabled", settings={"braidlog.table": "json"})
    words = 'id="table">json, 0 rows in 0 files, 0 B; 0 records of this node not committed yet.'
    until(lambda: words in ask(f"{filled.admin_url}/topics/tabled").text)
