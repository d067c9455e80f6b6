"""What an operator does in the console, in a browser: each is named before it is done, and then it is done."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from tests.console.asking import Visitor, ask
from tests.console.browsing import MILLISECONDS_MAX, close, confirm, opened
from tests.console.people import ADA, OLGA, VERA, connected, guarded_node, looking, visitor
from tests.console.waiting import until

from braidlog import kv
from braidlog.testing.server import ServerProcess

expect.set_options(timeout=MILLISECONDS_MAX)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with guarded_node(tmp_path_factory.mktemp("actions")) as running:
        yield running


def make_topic(node: ServerProcess, name: str, records: int = 0) -> None:
    with connected(node) as client:
        client.admin.create_topic(name)
        producer = client.producer()
        for number in range(records):
            producer.send(name, b"%d" % number, partition=0)
        producer.flush()


def make_group(node: ServerProcess, group: str, topic: str, offset: int) -> None:
    with connected(node) as client:
        client.admin.reset_group(group, topic, {0: offset})


# -- signing in ----------------------------------------------------------------------------------------------------


def test_signing_in_with_a_token_and_out_again(browser: Browser, node: ServerProcess) -> None:
    with opened(browser, f"{node.admin_url}/groups", forgiven="403") as page:
        page.wait_for_url("**/login?next=/groups")
        page.get_by_label("Name").fill(OLGA)
        page.get_by_label("Password or token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#said .fault")).to_have_text("Wrong name or password.")
        page.get_by_label("Password or token").fill("olga-token")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/groups")
        expect(page.locator(".who")).to_contain_text(OLGA)
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/login")
        page.goto(f"{node.admin_url}/groups")
        page.wait_for_url("**/login?next=/groups")


def test_who_only_views_is_shown_no_page_of_administrators(browser: Browser, node: ServerProcess) -> None:
    with looking(browser, node, "/topics", VERA) as page:
        expect(page.get_by_role("navigation").get_by_role("link", name="Topics")).to_be_visible()
        for name in ("Access", "Connections", "Settings"):
            expect(page.get_by_role("navigation").get_by_role("link", name=name)).to_have_count(0)


def test_who_may_not_is_told_so_where_it_asked(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "not-for-vera")
    with looking(browser, node, "/topics/not-for-vera", VERA) as page:
        page.locator("#change summary").click()
        page.get_by_role("button", name="Delete topic").click()
        page.get_by_role("button", name="Confirm").click()
        expect(page.locator("#acted.fault")).to_be_visible()
    with connected(node) as client:
        assert "not-for-vera" in client.admin.list_topics()


# -- topics --------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_with_settings(browser: Browser, node: ServerProcess) -> None:
    with looking(browser, node, "/topics", OLGA) as page:
        page.locator("#create summary").click()
        page.get_by_label("Name").fill("made-here")
        page.get_by_label("Partitions").fill("3")
        page.get_by_label("Settings").fill("retention.ms=86400000")
        page.locator("#create").get_by_role("button", name="Create topic").click()
        expect(page.locator("#confirm table")).to_contain_text("86400000")
        confirm(page, "Create topic made-here with 3 partitions.", "Topic made-here created.")
        close(page)
        page.wait_for_url("**/topics/made-here")
        page.locator("#settings-of-topic summary").click()
        row = page.locator('#settings-of-topic tr:has(code:text-is("retention.ms"))')
        expect(row.locator("td").nth(2)).to_have_text("topic")
        expect(page.locator("#settings-of-topic tr").filter(has_text="cleanup.policy")).to_contain_text("default")


def test_what_is_not_confirmed_is_not_done(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "kept")
    with looking(browser, node, "/topics/kept", OLGA) as page:
        page.locator("#change summary").click()
        page.get_by_role("button", name="Delete topic").click()
        expect(page.locator("#confirm-words")).to_have_text(
            "Delete topic kept with its 1 partition and all records permanently."
        )
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#confirm")).to_be_hidden()
        page.get_by_role("button", name="Delete topic").click()
        expect(page.locator("#confirm-words")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#confirm")).to_be_hidden()
    with connected(node) as client:
        assert "kept" in client.admin.list_topics()


def test_a_setting_is_changed_and_put_back(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "set")
    with looking(browser, node, "/topics/set", OLGA) as page:
        row = page.locator('#settings-of-topic tr:has(code:text-is("retention.ms"))')
        for reset, words, origin in (
            (False, "to 60000;", "topic"),
            (True, "to the node's default", "default"),
        ):
            page.locator("#settings-of-topic summary").click()
            page.locator("#setting-form [name=setting]").select_option("retention.ms")
            page.locator("#setting-form [name=value]").fill("60000")
            page.locator("#setting-form [name=reset]").set_checked(reset)
            page.locator("#setting-form").get_by_role("button").click()
            confirm(page, words, " set.")
            close(page)
            expect(row).to_contain_text(origin)


def test_partitions_are_added(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "grown")
    with looking(browser, node, "/topics/grown", OLGA) as page:
        page.locator("#change summary").click()
        page.locator("#partitions-form [name=partitions]").fill("1")
        page.get_by_role("button", name="Add partitions").click()
        expect(page.locator("#acted.fault")).to_contain_text("can only be increased")
        close(page)
        page.locator("#partitions-form [name=partitions]").fill("4")
        page.get_by_role("button", name="Add partitions").click()
        confirm(page, "Add 3 partitions to topic grown", "now has 4 partitions")
        close(page)
        expect(page.locator("#live tbody tr")).to_have_count(4)


def test_records_are_trimmed_after_a_look_at_how_many(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "trimmed", 10)
    with looking(browser, node, "/topics/trimmed", OLGA) as page:
        page.locator("#change summary").click()
        page.locator("#trim-form [name=offset]").fill("7")
        page.get_by_role("button", name="Trim").click()
        expect(page.locator("#confirm tbody td")).to_have_text(["0", "0", "7", "7"])
        confirm(page, "before offset 7", "7 records of topic trimmed deleted")
    with connected(node) as client:
        assert client.admin.span("trimmed", 0).earliest == 7


def test_a_topic_is_deleted(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "gone", 3)
    with looking(browser, node, "/topics/gone", OLGA) as page:
        page.locator("#change summary").click()
        page.get_by_role("button", name="Delete topic").click()
        expect(page.locator("#confirm tbody td")).to_have_text(["1", "3"])
        confirm(page, "Delete topic gone", "Topic gone deleted.")
        close(page)
        page.wait_for_url("**/topics")
        expect(page.get_by_role("link", name="gone", exact=True)).to_have_count(0)


# -- groups --------------------------------------------------------------------------------------------------------


def test_members_are_shown_with_client_host_and_partitions(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "read", 1)
    with connected(node) as client:
        consumer = client.consumer()
        consumer.subscribe("read", group="readers")
        until(consumer.poll)
        with looking(browser, node, "/groups/readers", OLGA) as page:
            cells = page.locator("#members tbody td")
            expect(cells.nth(3)).to_have_text("read 0")
            expect(cells.nth(2)).to_contain_text("127.0.0.1")
            expect(cells.nth(1)).not_to_be_empty()
            expect(page.locator("[data-key='read/0'] td").last).to_have_text(str(cells.first.text_content()))
            page.locator("#change summary").click()
            page.get_by_role("button", name="Reset offsets").click()
            expect(page.locator("#acted.fault")).to_contain_text("has members")


def test_offsets_are_reset_after_a_look_at_the_lag(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "resettable", 10)
    make_group(node, "resetting", "resettable", 8)
    with looking(browser, node, "/groups/resetting", OLGA) as page:
        page.locator("#change summary").click()
        page.locator("#reset-form [name=to]").select_option("shift")
        page.locator("#reset-form [name=at]").fill("-5")
        page.get_by_role("button", name="Reset offsets").click()
        expect(page.locator("#confirm tbody td")).to_have_text(["0", "8", "3", "2", "7"])
        confirm(
            page,
            "Reset the offsets of group resetting in 1 partition of topic resettable",
            "Offsets of group resetting reset.",
        )
    with connected(node) as client:
        assert client.admin.group_offsets("resetting") == {("resettable", 0): 3}


@pytest.mark.parametrize(
    ("to", "at", "offset"),
    [
        ("earliest", "", 0),
        ("latest", "", 10),
        ("offset", "4", 4),
        ("offset", "99", 10),
        ("time", "now", 10),
        ("time", "-1d", 0),
    ],
)
def test_a_group_goes_where_it_is_sent(node: ServerProcess, to: str, at: str, offset: int) -> None:
    topic = f"sent-{to}-{at}".strip("-")
    make_topic(node, topic, 10)
    make_group(node, topic, topic, 5)
    assert "Offsets of group" in visitor(node, OLGA).act("group-reset", group=topic, topic=topic, to=to, at=at).text
    with connected(node) as client:
        assert client.admin.group_offsets(topic) == {(topic, 0): offset}


def test_a_group_is_deleted(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "left", 1)
    make_group(node, "leaving", "left", 1)
    with looking(browser, node, "/groups/leaving", OLGA) as page:
        page.locator("#change summary").click()
        page.get_by_role("button", name="Delete group").click()
        confirm(page, "Delete group leaving and its 1 committed offset.", "Group leaving deleted.")
        close(page)
        page.wait_for_url("**/groups")
    with connected(node) as client:
        assert "leaving" not in client.admin.list_groups()


# -- keys ----------------------------------------------------------------------------------------------------------


def test_a_key_is_added_edited_expires_and_is_deleted(browser: Browser, node: ServerProcess) -> None:
    with (
        kv.connect(f"mayfly://ada:ada-token@127.0.0.1:{node.ports['mayfly']}") as store,
        looking(browser, node, "/keys", OLGA) as page,
    ):
        expect(page.locator("#kv-memory")).to_contain_text("of memory")
        page.locator("#add summary").click()
        page.locator("#key-form [name=key]").fill("colour")
        page.locator("#key-form [name=value]").fill("red")
        page.get_by_role("button", name="Save").click()
        confirm(page, "Add key colour, a string of 3 bytes.", " saved.")
        close(page)
        page.wait_for_url("**/keys/one?hex=636f6c6f7572")
        assert store.get("colour") == b"red"
        page.locator("#change summary").click()
        page.locator("#key-form [name=value]").fill("green")
        page.get_by_role("button", name="Save").click()
        confirm(page, "Replace key colour, a string of 5 bytes.", " saved.")
        close(page)
        expect(page.locator("dd pre")).to_have_text("green")
        page.locator("#change summary").click()
        page.locator("#expire-form [name=ttl]").fill("9000")
        page.get_by_role("button", name="Set expiry").click()
        confirm(page, "expire in 9,000 seconds", "Done")
        close(page)
        expect(page.get_by_text("Expires in 2 h")).to_be_visible()
        assert 0 < (store.ttl("colour") or 0) <= 9000
        page.locator("#change summary").click()
        page.get_by_role("button", name="Delete key").click()
        confirm(page, "Delete key colour permanently.", "Key colour deleted.")
        assert store.get("colour") is None


# -- schemas -------------------------------------------------------------------------------------------------------


def test_a_schema_is_registered_and_one_that_does_not_fit_is_told_so(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "typed")
    record = {"type": "record", "name": "O", "fields": [{"name": "n", "type": "long"}]}
    with looking(browser, node, "/schemas", OLGA) as page:
        page.locator("#register summary").click()
        page.get_by_label("Subject").fill("typed-value")
        page.get_by_label("Schema", exact=True).fill(json.dumps(record))
        page.get_by_role("button", name="Register schema").click()
        confirm(page, "for subject typed-value, a new subject.", "Schema of subject typed-value registered.")
        close(page)
        page.wait_for_url("**/schemas/typed-value")
        expect(page.locator("pre")).to_contain_text('"name": "n"')
        page.locator("#register summary").click()
        page.get_by_label("Schema", exact=True).fill(json.dumps(record | {"fields": [{"name": "m", "type": "long"}]}))
        page.get_by_role("button", name="Register schema").click()
        expect(page.locator("#acted.fault")).to_contain_text("is incompatible with an earlier schema")
    assert "Register a schema (AVRO" in node.errors()
    assert f"Done: by {OLGA!r}" in node.errors()


# -- access --------------------------------------------------------------------------------------------------------


def test_a_user_is_created_signs_in_and_is_deleted(browser: Browser, node: ServerProcess) -> None:
    with looking(browser, node, "/access") as page:
        expect(page.locator("#tokens .pill")).to_have_text(["ada", "nick", "olga", "vera"])
        page.locator("#user-form [name=user]").fill("ulla")
        page.locator("#user-form [name=password]").fill("ullas-password")
        page.get_by_role("button", name="Create user or change password").click()
        confirm(page, "Create user ulla.", "Password of user ulla set.")
        assert "ullas-password" not in page.content()
        close(page)
        expect(page.locator("#users tbody tr")).to_have_count(2)
        ulla = Visitor(node.admin_url)
        assert "hx-redirect" in ulla.sign_in("ulla", "ullas-password").headers
        assert ask(f"{node.admin_url}/topics", cookie=ulla.cookie).status == 200
        page.get_by_role("button", name="Delete user ulla").first.click()
        confirm(page, "Delete user ulla", "User ulla deleted.")
        close(page)
        expect(page.locator("#users tbody tr")).to_have_count(0)
    assert "hx-redirect" not in Visitor(node.admin_url).sign_in("ulla", "ullas-password").headers
    until(lambda: ask(f"{node.admin_url}/topics", cookie=ulla.cookie).status == 403)
    assert "ullas-password" not in node.errors()


def test_a_rule_is_added_holds_and_is_taken_back(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "ruled")
    rule = page_rule = {"principal": VERA, "operation": "alter", "resource": "topic", "name": "ruled"}
    setting = {"topic": "ruled", "setting": "retention.ms", "value": "1000000"}
    vera = visitor(node, VERA)
    assert 'class="fault"' in vera.act("topic-setting", **setting).text
    with looking(browser, node, "/access") as page:
        for name in ("principal", "name"):
            page.locator(f"#rule-form [name={name}]").fill(rule[name])
        for name in ("operation", "resource"):
            page.locator(f"#rule-form [name={name}]").select_option(page_rule[name])
        page.get_by_role("button", name="Add rule").click()
        confirm(page, "Add a rule: vera may alter topic ruled.", "Rule added.")
        close(page)
        row = page.locator("#rules tbody tr").filter(has_text="ruled")
        expect(row).to_have_count(1)
        assert 'class="done"' in vera.act("topic-setting", **setting).text
        row.get_by_role("button").click()
        confirm(page, "Delete the rule: vera may alter topic ruled.", "Rule deleted.")
    assert 'class="fault"' in vera.act("topic-setting", **(setting | {"value": "2000000"})).text


def test_a_quota_is_set_and_removed(browser: Browser, node: ServerProcess) -> None:
    with looking(browser, node, "/access") as page:
        page.locator("#quota-form [name=user]").fill("bulk")
        page.locator("#quota-form [name=append_bytes_per_second]").fill("1000000")
        page.get_by_role("button", name="Set quota").click()
        confirm(page, "Set the quota of user bulk.", "Quota set.")
        close(page)
        row = page.locator("#quotas tbody tr").filter(has_text="bulk")
        expect(row).to_have_count(1)
        row.get_by_role("button", name="Remove").click()
        confirm(page, "Remove the quota of user bulk", "Quota removed.")
        close(page)
        expect(row).to_have_count(0)


# -- two at once ---------------------------------------------------------------------------------------------------


def test_two_browsers_at_once(browser: Browser, node: ServerProcess) -> None:
    make_topic(node, "contested")
    with (
        looking(browser, node, "/topics/contested", OLGA) as one,
        looking(browser, node, "/topics/contested", ADA) as other,
    ):
        for page in (one, other):
            page.locator("#change summary").click()
            page.get_by_role("button", name="Delete topic").click()
            expect(page.locator("#confirm-words")).to_contain_text("Delete topic contested")
        one.get_by_role("button", name="Confirm").click()
        expect(one.locator("#acted.done")).to_be_visible()
        other.get_by_role("button", name="Confirm").click()
        expect(other.locator("#acted.fault")).to_contain_text("contested")
    said = re.findall(r"braidlog\.audit: (Delete topic contested.*)", node.errors())
    assert [re.sub(r" from .*", "", line) for line in said] == [
        "Delete topic contested with its 1 partition and all records permanently. Done: by 'olga'"
    ]
