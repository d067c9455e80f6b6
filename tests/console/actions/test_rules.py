"""Every action without a browser: who may not is refused by the node, nothing is done without a yes, others' pages do nothing."""

import re
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser
from tests.console.asking import Visitor, ask
from tests.console.browsing import opened
from tests.console.people import ADA, NICK, OLGA, VERA, connected, guarded_node, visitor

from braidlog import kv
from braidlog.client.drivers.contract import AccessRule
from braidlog.client.drivers.quotas import Quota
from braidlog.console.actions import ACTIONS
from braidlog.testing.server import ServerProcess

FIELDS: dict[str, dict[str, str]] = {
    "topic-create": {"topic": "new", "partitions": "1"},
    "topic-setting": {"topic": "orders", "setting": "retention.ms", "value": "60000"},
    "topic-partitions": {"topic": "orders", "partitions": "5"},
    "topic-trim": {"topic": "orders", "offset": "1"},
    "topic-delete": {"topic": "orders"},
    "group-reset": {"group": "billing", "topic": "orders", "to": "earliest"},
    "group-delete": {"group": "billing"},
    "key-put": {"key": "k", "value": "other"},
    "key-expire": {"hex": b"k".hex(), "ttl": "100"},
    "key-delete": {"hex": b"k".hex()},
    "schema-register": {"subject": "orders-value", "schema": '"long"'},
    "user-set": {"user": "new", "password": "long-enough"},
    "user-delete": {"user": "ulla"},
    "rule-add": {"principal": "new", "resource": "topic", "name": "x", "operation": "read"},
    "rule-delete": {"principal": "ulla", "resource": "topic", "name": "x", "operation": "read"},
    "quota-set": {"user": "new", "append_bytes_per_second": "1"},
    "quota-remove": {"user": "ulla"},
    "transaction-abort": {"transactional_id": "tx"},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with guarded_node(tmp_path_factory.mktemp("rules")) as running:
        with connected(running) as client:
            client.admin.create_topic("orders")
            client.producer().send_and_wait("orders", b"1")
            client.producer().send_and_wait("orders", b"2")
            client.admin.reset_group("billing", "orders", {0: 1})
            client.admin.set_password("ulla", "ullas-password")
            client.admin.add_rule(AccessRule("ulla", "topic", "x", "read"))
            client.admin.set_quota(Quota(user="ulla", append_bytes_per_second=1000))
            client.admin.create_topic("moved")
        with kv.connect(f"mayfly://ada:ada-token@127.0.0.1:{running.ports['mayfly']}") as store:
            store.set("k", "v")
        yield running


def state(node: ServerProcess) -> list[object]:
    """All that the actions would change."""
    with (
        connected(node) as client,
        kv.connect(f"mayfly://ada:ada-token@127.0.0.1:{node.ports['mayfly']}") as store,
    ):
        admin = client.admin
        found: list[object] = [admin.list_topics(), admin.topic_settings("orders"), admin.describe_topic("orders")]
        found += [admin.group_offsets("billing"), admin.list_users(), admin.list_rules(), admin.list_quotas()]
        schemas = ask(f"{node.registry_url}/subjects", authorization="Basic " + b64encode(b"ada:ada-token").decode())
        assert schemas.status == 200
        return [*found, store.get("k"), store.ttl("k"), schemas.text]


def test_every_action_has_fields_here() -> None:
    assert FIELDS.keys() == ACTIONS.keys()


def test_each_action_is_refused_for_who_only_views(node: ServerProcess) -> None:
    before, vera = state(node), visitor(node, VERA)
    with (
        connected(node) as client,
        client.producer(transactional_id="tx", transaction_timeout=600) as producer,
        producer.transaction(),
    ):
        producer.send("moved", b"1")
        producer.flush()
        for action, fields in FIELDS.items():
            answer = vera.act(action, **fields)
            assert answer.status == 200
            assert re.search(r'class="fault".*(may not|ot allowed)', answer.text), (action, answer.text)
    assert 'class="fault"' in vera.post("/topics/orders/records", {"value": "x"}).text
    assert 'class="fault"' in ask(f"{node.admin_url}/transactions?topic=orders", cookie=vera.cookie).text
    assert state(node) == before
    with connected(node) as client:
        assert client.admin.span("orders", 0).latest == 2, "nothing was produced"
    assert "Not done" in node.errors()


def test_what_is_for_administrators_is_refused_for_who_operates(node: ServerProcess) -> None:
    before, olga = state(node), visitor(node, OLGA)
    for action in ("user-set", "user-delete", "rule-add", "rule-delete", "quota-set", "quota-remove"):
        assert re.search('class="fault".*may not administer', olga.act(action, **FIELDS[action]).text), action
    assert state(node) == before
    for path in ("/access", "/settings", "/connections", "/connections/1", "/api/connections/1/wire"):
        assert ask(f"{node.admin_url}{path}", cookie=olga.cookie).status == 403, path
        refused = ask(f"{node.admin_url}{path}", cookie=olga.cookie, accept="text/html")
        assert refused.status == 403, path
        assert "<h1>Not allowed</h1>" in refused.text, path
        assert ask(f"{node.admin_url}{path}", cookie=visitor(node, ADA).cookie).status in (200, 404), path


def test_records_and_keys_are_read_by_who_may_read_them(node: ServerProcess) -> None:
    vera, olga = visitor(node, VERA), visitor(node, OLGA)
    paths = ("/api/topics/orders/0/0/value", f"/keys/one?hex={b'k'.hex()}")
    for path in paths:
        assert ask(f"{node.admin_url}{path}", cookie=vera.cookie).status in (403, 404, 503), path
        assert ask(f"{node.admin_url}{path}", cookie=olga.cookie).status == 200, path


def test_who_may_not_view_is_shown_nothing(node: ServerProcess) -> None:
    nick = Visitor(node.admin_url)
    nick.sign_in(NICK, "nick-token")
    for path in ("/", "/topics", "/metrics", "/api/topics", "/api/topics/orders/tail"):
        answer = ask(f"{node.admin_url}{path}", cookie=nick.cookie)
        assert answer.status == 403, path
        assert "may not view this console" in answer.text
    page = ask(f"{node.admin_url}/", cookie=nick.cookie, accept="text/html")
    assert page.status == 403
    assert "<h1>Not allowed</h1>" in page.text
    assert "nick may not view this console" in page.text
    assert nick.post("/logout", {}).headers["hx-redirect"] == "/login"  # and is not locked in


def test_nothing_is_done_without_a_yes_to_the_very_words(node: ServerProcess) -> None:
    before, ada = state(node), visitor(node, ADA)
    seals = {}
    for action, fields in FIELDS.items():
        asked = ada.post(f"/actions/{action}", fields)
        seals[action] = re.findall(r'data-seal="([0-9a-f]+)"', asked.text)
        for wrong in ("", "0" * 64):
            assert 'class="done"' not in ada.post(f"/actions/{action}", fields, x_confirmed=wrong).text
    (yes,) = seals["topic-delete"]
    assert 'class="done"' not in ada.post("/actions/key-delete", FIELDS["key-delete"], x_confirmed=yes).text
    other = ada.post(
        "/actions/topic-partitions", {"topic": "orders", "partitions": "9"}, x_confirmed=seals["topic-partitions"][0]
    )
    assert 'class="done"' not in other.text, "a yes to other partitions"
    stranger = visitor(node, ADA).post("/actions/topic-delete", FIELDS["topic-delete"], x_confirmed=yes)
    assert 'class="done"' not in stranger.text, "a yes that another browser was asked for"
    assert state(node) == before


@pytest.mark.parametrize(
    ("value", "text", "is_hex"),
    [
        (b"red", "red", False),
        (b"\xff\x00", "ff00", True),
        (b"a\r\nb", "610d0a62", True),
        (b"\nred", "0a726564", True),
        (b"x" * 5000, "", False),
    ],
)
def test_a_form_shows_a_value_so_that_storing_it_changes_nothing(
    node: ServerProcess, value: bytes, text: str, *, is_hex: bool
) -> None:
    with kv.connect(f"mayfly://ada:ada-token@127.0.0.1:{node.ports['mayfly']}") as store:
        store.set("edited", value)
    page = ask(f"{node.admin_url}/keys/one?hex={b'edited'.hex()}", cookie=visitor(node, OLGA).cookie)
    assert re.findall(r"<textarea name=\"value\"[^>]*>(.*?)</textarea>", page.text, re.DOTALL) == [text]
    assert ('name="value-is-hex" checked' in page.text) is is_hex
    assert ("too long to edit here" in page.text) is (len(value) > 4096)


def test_what_cannot_be_understood_is_told(node: ServerProcess) -> None:
    ada = visitor(node, ADA)
    wrong = [
        ("topic-create", {"topic": ""}, "missing topic"),
        ("topic-create", {"topic": "x", "settings": "no equals"}, "name=value"),
        ("topic-setting", {"topic": "orders", "setting": "nope", "value": "1"}, "unknown topic setting"),
        ("topic-trim", {"topic": "orders", "partition": "7"}, "partitions 0 to 0"),
        ("group-reset", {"group": "billing", "topic": "orders", "to": "moon"}, "one of earliest"),
        ("group-reset", {"group": "billing", "topic": "orders", "to": "time", "at": "soon"}, "a time is"),
        ("key-put", {"key": "", "value": "x"}, "missing key"),
        ("key-expire", {"hex": "zz"}, "invalid key"),
        ("user-set", {"user": "x", "password": "short"}, "8 characters"),
        ("rule-add", {"principal": "x", "resource": "moon", "operation": "read"}, "invalid rule"),
        ("quota-set", {"append_bytes_per_second": "1"}, "missing target"),
    ]
    for action, fields, words in wrong:
        found = ada.act(action, **fields).text.replace("&#39;", "'")
        assert words in found.lower(), (action, found)
        assert 'class="fault"' in found, found
    assert ada.post("/actions/nothing", {}).status == 404


def test_another_sites_page_can_do_nothing(browser: Browser, node: ServerProcess) -> None:
    """In a browser that is signed in: a form that sends itself, and a script that asks."""
    target = f"{node.admin_url}/actions/topic-delete"
    asked = threading.Event()

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (
                f'<form method="post" action="{target}" target="there"><input name="topic" value="orders"></form>'
                '<iframe name="there"></iframe><script>document.forms[0].submit();'
                f'fetch("{target}", {{method: "POST", credentials: "include", body: "topic=orders",'
                ' headers: {"content-type": "application/x-www-form-urlencoded"}, mode: "no-cors"})'
                '.catch(() => 0).then(() => { document.title = "tried"; });</script>'
            ).encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(body)
            asked.set()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    before, ada = state(node), visitor(node, ADA)
    name, _, value = ada.cookie.partition("=")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with opened(browser, "about:blank", forgiven=".") as page:
            page.context.add_cookies([{"name": name, "value": value, "url": node.admin_url, "sameSite": "Strict"}])
            page.goto(f"http://localhost:{server.server_port}/")
            page.wait_for_function("document.title === 'tried'")
        assert asked.is_set()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert state(node) == before


def test_a_read_only_console_changes_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    with guarded_node(tmp_path_factory.mktemp("read-only"), "--set", "admin.read_only=true") as closed:
        ada = visitor(closed, ADA)
        for action, fields in FIELDS.items():
            answer = ada.post(f"/actions/{action}", fields)
            assert (answer.status, answer.text) == (403, "this console is read only (admin.read_only)\n")
        assert ada.post("/topics/orders/records", {"value": "x"}).status == 403
        page = ask(f"{closed.admin_url}/topics", cookie=ada.cookie).text
        assert "Read-only mode" in page
        assert "Create topic" not in page
