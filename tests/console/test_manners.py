"""How pages behave for everyone: tables, filters, plots, empty states; contrast, keyboard, narrow screens."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from tests.adapters.kafka.asker import Asker
from tests.console.asking import Feed, ask
from tests.console.browsing import MILLISECONDS_MAX, PAGES, opened
from tests.console.waiting import until

import braidlog
from braidlog import kv
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.messages import transactions as t

expect.set_options(timeout=MILLISECONDS_MAX)

CONTRAST = """() => {
  const channel = (c) => { c /= 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const paint = (...colours) => {  // one over the other
    canvas.clearRect(0, 0, 1, 1);
    colours.forEach((each) => { canvas.fillStyle = each; canvas.fillRect(0, 0, 1, 1); });
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const poor = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !element.checkVisibility() || element.closest(".u-wrap, option, datalist")) continue;
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
    const ground = ["white", ...grounds], style = getComputedStyle(element);
    const [a, b] = [light(paint(...ground)), light(paint(...ground, style.color))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${element.tagName}.${element.className} ${element.textContent.slice(0, 30)}`);
  }
  return poor;
}"""


def kafka(node: ServerProcess) -> str:
    return f"kafka://127.0.0.1:{node.ports['kafka']}"


@pytest.fixture(scope="module")
def filled(node: ServerProcess) -> ServerProcess:
    with braidlog.connect(kafka(node)) as client:
        for topic, partitions in (("orders", 3), ("payments", 1), ("clicks", 2)):
            client.admin.create_topic(topic, partitions)
        producer = client.producer()
        for number in range(30):
            order = {"order": number, "total": number * 1.5, "items": [{"gift": number % 10 == 0}]}
            headers = (("kind", b"refund" if number % 2 else b"sale"),)
            producer.send(
                "orders", json.dumps(order).encode(), key=b"c-%d" % (number % 3), headers=headers, partition=0
            )
        producer.flush()
        client.admin.reset_group("billing", "orders", {0: 10})
        client.admin.reset_group("archive", "orders", {0: 30})
    return node


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("empty"), admin=True) as running:
        yield running


# -- tables --------------------------------------------------------------------------------------------------------


def test_topics_are_sorted_by_a_column_and_stay_so_while_figures_move(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/topics") as page:
        names = page.locator("#live tbody td:first-child")
        expect(names).to_have_text(["clicks", "orders", "payments"])
        page.get_by_role("link", name="partitions").click()
        expect(names).to_have_text(["payments", "clicks", "orders"])
        expect(page.locator("th[aria-sort=ascending]")).to_contain_text("partitions")
        page.get_by_role("link", name="partitions").click()
        expect(names).to_have_text(["orders", "clicks", "payments"])
        expect(page.locator("th[aria-sort=descending]")).to_contain_text("partitions")
        cell = page.locator("tr[data-key=orders] td").nth(1)
        before = cell.inner_text()
        with braidlog.connect(kafka(filled)) as client:
            client.producer().send_and_wait("orders", b"{}", partition=1)
        expect(cell).not_to_have_text(before)
        expect(names).to_have_text(["orders", "clicks", "payments"])


def test_topics_are_filtered_by_name(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/topics") as page:
        page.get_by_label("Contains").fill("pay")
        page.get_by_label("Contains").press("Enter")
        expect(page.locator("#live tbody td:first-child")).to_have_text(["payments"])
        page.get_by_label("Contains").fill("nothing")
        page.get_by_label("Contains").press("Enter")
        expect(page.locator("#live")).to_contain_text("No matching topics")


def test_internal_topics_are_hidden_until_they_are_asked_for(filled: ServerProcess) -> None:
    with kv.connect(f"mayfly://127.0.0.1:{filled.ports['mayfly']}") as store:
        store.set("key", "value")  # its feed is a topic
    until(lambda: "1 internal topic is hidden" in ask(f"{filled.admin_url}/topics").text)
    assert 'data-key="__kv"' not in ask(f"{filled.admin_url}/topics").text
    assert 'data-key="__kv"' in ask(f"{filled.admin_url}/topics?internal=1").text


def test_groups_are_sorted_by_lag(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/groups?sort=lag&down=1") as page:
        expect(page.locator("#live tbody td:first-child")).to_have_text(["billing", "archive"])


def test_a_form_that_is_being_filled_in_stays_while_figures_move(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/groups/billing") as page:
        page.locator("#change summary").click()
        page.locator("#reset-form [name=at]").fill("half-typed")
        cell = page.locator("#live tbody tr").first.locator("td").nth(3)
        before = cell.inner_text()
        with braidlog.connect(kafka(filled)) as client:
            client.producer().send_and_wait("orders", b"{}", partition=0)
        expect(cell).not_to_have_text(before)
        expect(page.locator("#reset-form [name=at]")).to_have_value("half-typed")
        expect(page.locator("#reset-form [name=at]")).to_be_focused()


# -- records -------------------------------------------------------------------------------------------------------


def test_records_are_filtered_by_an_expression_with_progress(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/topics/orders") as page:
        rows = page.locator("#records > li")
        page.locator("[name=live]").uncheck()
        page.locator("[name=from]").select_option("earliest")
        page.locator("[name=filter]").fill(
            'value.items[0].gift and key == "c-1" or value.order == 7 and headers.kind == "refund"'
        )
        page.locator("[name=filter]").press("Enter")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text('"order": 7')
        expect(rows.nth(1)).to_contain_text('"order": 10')
        expect(page.locator("#tail-scanned")).to_contain_text("scanned 3")
        page.locator("[name=filter]").fill("value.total >")
        page.locator("[name=filter]").press("Enter")
        expect(page.locator("#records .fault")).to_contain_text("Invalid filter: expected a value")


def test_records_of_a_range(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/topics/orders") as page:
        rows = page.locator("#records > li")
        page.locator("#tail-form [name=partition]").select_option("0")
        page.locator("[name=from]").select_option("offset")
        page.locator("#tail-form [name=offset]").fill("4")
        page.locator("[name=to]").select_option("offset")
        expect(page.locator("[name=live]")).to_be_disabled()
        page.locator("[name=until-offset]").fill("9")
        page.locator("[name=until-offset]").press("Enter")
        expect(rows.locator(".where")).to_have_text([f"0:{offset}" for offset in range(4, 9)])
        expect(page.locator("#tail-scanned")).to_have_text("scanned 5 of about 5")


def test_a_value_is_shown_as_its_schema_says(browser: Browser, filled: ServerProcess) -> None:
    schema = {"schema": '{"type":"record","name":"Sale","fields":[{"name":"total","type":"int"}]}'}
    answer = ask(
        f"{filled.registry_url}/subjects/sales-value/versions",
        "POST",
        body=json.dumps(schema).encode(),
        content_type="application/json",
    )
    number = json.loads(answer.body)["id"]
    with braidlog.connect(f"kafka://127.0.0.1:{filled.ports['kafka']}") as client, client.producer() as producer:
        client.admin.create_topic("sales")
        producer.send_and_wait("sales", b"\0" + number.to_bytes(4, "big") + b"\x54")  # Avro's zig-zag: 42
    with opened(browser, f"{filled.admin_url}/topics/sales") as page:
        line = page.locator("#records .line")
        expect(line.locator(".text")).to_have_text('{"total":42}')
        line.click()
        expect(page.locator("#records .more pre")).to_have_text('{\n  "total": 42\n}')
        expect(page.locator("#records .more button[data-view]")).to_have_text([f"Schema {number}", "Text", "Hex"])


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [
        ("from=earliest&to=offset&until=3", [0, 1, 2]),
        ("from=offset&at=7&to=offset&until=5", []),
        ("from=offset&at=28&to=offset&until=9999999", None),
        ("from=earliest&to=time&until=1000", []),
        ("from=offset&at=28&to=time&until=99999999999999", None),
    ],
)
def test_a_range_ends_where_it_is_told_and_is_never_followed(
    filled: ServerProcess, asked: str, offsets: list[int] | None
) -> None:
    path = f"{filled.admin_url}/api/topics/orders"
    feed = Feed(f"{path}/tail?partition=0&{asked}")
    found = [data["o"] for name, data in feed if name == "record"]
    feed.close()
    assert found[:2] == [28, 29] if offsets is None else found == offsets
    downloaded = ask(f"{path}/download?partition=0&{asked}").text.splitlines()
    assert [json.loads(line)["offset"] for line in downloaded] == found
    assert ask(f"{path}/download?to=moon").status == 400


def test_a_filter_is_saved_and_forgotten(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/topics/orders") as page:
        page.locator("[name=filter]").fill("value.total > 40")
        page.get_by_role("button", name="Save filter").click()
        page.goto(f"{filled.admin_url}/topics/clicks")
        expect(page.locator("#saved-filters option")).to_have_attribute("value", "value.total > 40")
        page.locator("[name=filter]").fill("value.total > 40")
        page.get_by_role("button", name="Delete filter").click()
        expect(page.locator("#saved-filters option")).to_have_count(0)


def test_progress_is_told_to_programs_too(filled: ServerProcess) -> None:
    feed = Feed(f"{filled.admin_url}/api/topics/orders/tail?follow=0&from=earliest&partition=0&filter=offset<2", ())
    told = list(feed)
    feed.close()
    assert [data["o"] for name, data in told if name == "record"] == [0, 1]
    last = [data for name, data in told if name == "progress"][-1]
    assert last["scanned"] == last["of"] >= 30
    assert ask(f"{filled.admin_url}/api/topics/orders/download?filter=offset").status == 200
    assert ask(f"{filled.admin_url}/api/topics/orders/download?filter=moon").status == 400


# -- transactions --------------------------------------------------------------------------------------------------


def test_a_transaction_is_described_and_aborted(browser: Browser, filled: ServerProcess) -> None:
    with Asker(("127.0.0.1", filled.ports["kafka"])) as asker:
        made = asker.ask(t.InitProducerIdRequest("billing-1", 600_000))
        topics = [t.AddPartitionsToTxnRequestTopic("orders", [1, 2])]
        asker.ask(t.AddPartitionsToTxnRequest("billing-1", made.producer_id, made.producer_epoch, topics), 3)
    with opened(browser, f"{filled.admin_url}/transactions") as page:
        page.get_by_role("link", name="billing-1").click()
        expect(page.locator("#transaction")).to_contain_text("orders/1, orders/2")
        expect(page.locator("#transaction .pill")).to_have_text("Ongoing")
        page.get_by_role("button", name="Abort transaction").click()
        expect(page.locator("#confirm-words")).to_contain_text("Abort the transaction of billing-1 in 2 partitions")
        page.get_by_role("button", name="Confirm").click()
        expect(page.locator("#acted.done")).to_be_visible()
        page.locator("#confirm").get_by_role("button", name="Close").click()
        expect(page.locator("#transaction .pill")).not_to_have_text("Ongoing")


def test_producers_of_a_topic_are_listed(browser: Browser, filled: ServerProcess) -> None:
    with braidlog.connect(kafka(filled)) as client:
        client.admin.create_topic("produced", 2)
        producer = client.producer(transactional_id="listed-1")
        try:
            with producer.transaction(), opened(browser, f"{filled.admin_url}/topics/produced") as page:
                page.get_by_role("link", name="producers").click()
                expect(page.locator("#live")).to_contain_text("Topic produced has no active producers")
                producer.send("produced", b"x", partition=1)
                producer.flush()
                cells = page.locator("#producers tbody td")
                expect(cells.first).to_have_text("1")
                expect(cells.nth(3)).to_have_text("0")
                expect(cells.last).to_have_text("0")
                page.get_by_label("Producers of topic").fill("absent")
                page.get_by_role("button", name="Show").click()
                expect(page.locator("#live .fault")).to_contain_text("absent")
        finally:
            client.admin.delete_topic("produced")


# -- plots ---------------------------------------------------------------------------------------------------------


def test_a_plot_begins_with_what_was_before_the_page(browser: Browser, filled: ServerProcess) -> None:
    """The console has sampled since it started: a page that is opened again finds it."""
    with opened(browser, filled.admin_url) as page:
        page.wait_for_function(
            """async () => {
              const [box] = document.querySelectorAll("[data-plot=rates]");
              if (Number(box.dataset.history) > 0) return true;
              location.reload();
            }""",
            polling=5_000,
        )


# -- empty, and not there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/", "braid demo clicks"),
        ("/topics", "braid topic create NAME"),
        ("/groups", "braid tail TOPIC --group NAME"),
        ("/keys", "braid kv set KEY VALUE"),
        ("/access", "braid user create NAME"),
        ("/transactions", "transactional.id"),
        ("/connections", "braid tail TOPIC"),
        ("/spark", "braid pipeline init"),
    ],
)
def test_an_empty_page_shows_the_next_command(empty: ServerProcess, path: str, command: str) -> None:
    assert f"<code>{command}</code>" in ask(f"{empty.admin_url}{path}").text


def test_an_address_that_names_no_key_says_so(filled: ServerProcess) -> None:
    for query in ("", "?hex=", "?hex=no"):
        answer = ask(f"{filled.admin_url}/keys/one{query}", accept="text/html")
        assert answer.status == 404
        assert "Invalid key address" in answer.text


def test_a_page_that_is_not_there_says_so_and_leads_on(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/nowhere", forgiven="404") as page:
        expect(page.get_by_role("heading", name="Not found")).to_be_visible()
        expect(page.locator("main")).to_contain_text("Page not found: /nowhere.")
        page.locator("main").get_by_role("link", name="Overview").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert ask(f"{filled.admin_url}/nowhere").text == "not found\n"


# -- for everyone --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_and_tables_say_what_their_columns_are(
    browser: Browser, filled: ServerProcess, dark: bool
) -> None:
    with opened(browser, "about:blank", dark=dark, forgiven="404") as page:
        for path in (*PAGES, "/login", "/nowhere"):
            page.goto(f"{filled.admin_url}{path}", wait_until="domcontentloaded")
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            assert page.evaluate(CONTRAST) == [], path
            assert page.locator("th:not([scope]):not(.u-legend th)").count() == 0, path
            unnamed = "input:not([type=hidden]), select, textarea"
            lacking = page.locator(unnamed).evaluate_all(
                "all => all.filter((each) => !each.labels?.length && !each.ariaLabel).map((each) => each.outerHTML)"
            )
            assert lacking == [], path
            wide = page.locator(".row button").evaluate_all(
                "all => all.filter((each) => each.offsetWidth > 320).length"
            )
            assert wide == 0, f"{path}: a button as wide as the page"


def test_the_first_stop_of_the_keyboard_skips_to_the_content(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/topics") as page:
        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to the content")
        expect(skip).to_be_focused()
        expect(skip).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()


def test_a_topic_is_created_by_keyboard_alone(browser: Browser, filled: ServerProcess) -> None:
    with opened(browser, f"{filled.admin_url}/topics") as page:
        page.locator("#create summary").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type("by-keyboard")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Shift+Tab")
        expect(page.get_by_role("button", name="Cancel")).not_to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#acted.done")).to_contain_text("by-keyboard created")
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics/by-keyboard")
    with braidlog.connect(kafka(filled)) as client:
        client.admin.delete_topic("by-keyboard")


def test_a_question_that_is_shown_is_not_changed_any_more(browser: Browser, filled: ServerProcess) -> None:
    """Who answers at once has the focus where it was put, and the seal of the question that is read."""
    with opened(browser, f"{filled.admin_url}/topics") as page:
        page.locator("#create summary").click()
        page.get_by_label("Name").fill("asked")
        for partitions in ("1", "2"):
            page.get_by_label("Partitions").fill(partitions)
            told = page.evaluate("""() => new Promise((done) => {
                const box = document.querySelector("#confirm-box"), told = [];
                box.addEventListener("htmx:afterSettle", () => told.push("settled"), { once: true });
                box.addEventListener("htmx:afterSwap", () => setTimeout(() => {
                  done([...told, document.activeElement.textContent, document.querySelector("#confirm-words").textContent]);
                }), { once: true });
                htmx.trigger(document.querySelector("#create form"), "submit");
            })""")
            assert told[:2] == ["settled", "Cancel"]
            assert f"with {partitions} partition" in told[2]
            page.get_by_role("button", name="Cancel").click()
            expect(page.locator("#confirm")).to_be_hidden()
