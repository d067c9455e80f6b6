"""What others may not do: their pages, their names, their guesses."""

import hashlib
import json
from collections.abc import Iterator

import pytest
from tests.console.asking import Visitor, ask
from tests.console.waiting import until

from braidlog.console.access_control import Keys, is_ours
from braidlog.model.errors import BrokerError
from braidlog.server.config import check_exposure, load_config
from braidlog.testing.server import ServerProcess

TOKEN = "the-right-one"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()
PROGRESS = json.dumps({"query": "q1", "run": "r1"}).encode()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "settings.toml").write_text(f'[admin]\ntoken = "{HASH}"\nhosts = ["console.example"]\n')
    with ServerProcess(folder / "data", "--config", str(folder / "settings.toml"), admin=True) as running:
        yield running


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/metrics", "/topics", "/api/spark/queries"])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost.evil.example"])
def test_a_name_that_somebody_made_point_here_is_refused(node: ServerProcess, path: str, host: str) -> None:
    assert ask(f"{node.admin_url}{path}", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:9644", "LOCALHOST:80"])
def test_addresses_and_localhost_are_ours(node: ServerProcess, host: str) -> None:
    assert ask(f"{node.admin_url}/metrics", Host=host).status == 200


def test_probes_may_call_us_anything(node: ServerProcess) -> None:
    assert ask(f"{node.admin_url}/healthz", Host="pod.cluster").status == 200
    assert ask(f"{node.admin_url}/readyz", Host="pod.cluster").status == 200


def test_configured_names_are_ours_and_a_token_makes_any_name_good(guarded: ServerProcess) -> None:
    url = f"{guarded.admin_url}/metrics"
    assert ask(url, Host="console.example").status == 401
    assert ask(url, Host="other.example").status == 421
    assert ask(url, Host="other.example", Authorization=f"Bearer {TOKEN}").status == 200


# -- tokens --------------------------------------------------------------------------------------------------------


def test_with_a_token_nothing_is_served_without_it(guarded: ServerProcess) -> None:
    url = guarded.admin_url
    for path in ("/metrics", "/api/spark/queries", "/topics", "/settings"):
        assert ask(f"{url}{path}").status == 401
        assert ask(f"{url}{path}", Authorization="Bearer wrong").status == 401
        assert ask(f"{url}{path}", Authorization=f"Bearer {TOKEN}").status == 200
    assert ask(f"{url}/api/spark/progress", "POST", body=PROGRESS, Content_Type="application/json").status == 401
    told = ask(f"{url}/metrics").json()["error"]
    assert told == "sign in, or send the admin token: Authorization: Bearer …"
    assert ask(f"{url}/healthz").status == 200
    assert ask(f"{url}/static/app.js").status == 200


def test_who_has_no_token_hears_whether_it_is_ready_and_not_why(guarded: ServerProcess) -> None:
    stranger, friend = (
        ask(f"{guarded.admin_url}/readyz"),
        ask(f"{guarded.admin_url}/readyz", Authorization=f"Bearer {TOKEN}"),
    )
    assert stranger.status == friend.status == 200
    assert {check["name"] for check in stranger.json()["checks"]} == {
        check["name"] for check in friend.json()["checks"]
    }
    assert all(check["reason"] == "" for check in stranger.json()["checks"])


def test_a_browser_is_shown_the_way_in_and_gets_a_cookie_there(guarded: ServerProcess) -> None:
    url = guarded.admin_url
    sent = ask(f"{url}/settings", Accept="text/html")
    assert (sent.status, sent.headers["location"]) == (303, "/login?next=/settings")
    page = ask(f"{url}{sent.headers['location']}", Accept="text/html")
    assert page.status == 200
    cookie = page.headers["set-cookie"].partition(";")[0]
    secret = page.text.split('name="form-secret" content="')[1].partition('"')[0]
    form = {"Content_Type": "application/x-www-form-urlencoded", "Cookie": cookie, "X_CSRF_Token": secret}
    wrong = ask(f"{url}/login", "POST", body=b"token=wrong", **form)
    assert wrong.status == 403
    assert "set-cookie" not in wrong.headers
    entered = ask(f"{url}/login", "POST", body=f"token={TOKEN}&next=/settings".encode(), **form)
    assert entered.status in (200, 204)
    assert entered.headers["hx-redirect"] == "/settings"
    set_cookie = entered.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in set_cookie.split(";")}
    inside = set_cookie.partition(";")[0]
    assert ask(f"{url}/settings", Cookie=inside).status == 200
    assert ask(f"{url}/settings", Cookie=cookie).status == 401, "a cookie of who has not proved anything"
    name, _, value = inside.partition("=")
    number, who, until, signature = value.split(".")
    forged = f"{name}={number}.{who}.{int(until) + 1}.{signature}"
    assert ask(f"{url}/settings", Cookie=forged).status == 401


def test_a_cookie_ends() -> None:
    keys = Keys(HASH, "secret")
    cookie = keys.new_session(1_000, "ann")
    found = keys.read_session(cookie, 1_001)
    assert found is not None
    assert found.principal == "ann"
    assert keys.read_session(cookie, 1_000 + 13 * 3600) is None
    assert Keys(HASH, "another").read_session(cookie, 1_001) is None
    assert keys.read_session("x", 0) is None


@pytest.mark.parametrize(
    ("page", "ours"),
    [
        *((page, True) for page in ("/", "/topics", "/topics/a%20b?x=1#end")),
        *(
            (page, False)
            for page in ("", "//evil.example", "https://evil", "/\\evil", "/\t/evil", "/\n/evil", "/x\\..\\")
        ),
    ],
)
def test_the_way_in_leads_nowhere_else(page: str, ours: bool) -> None:
    assert is_ours(page) is ours


# -- forms ---------------------------------------------------------------------------------------------------------


def test_a_form_needs_our_own_page_behind_it(node: ServerProcess) -> None:
    visitor = Visitor(node.admin_url)
    fields, path = {"topic": "made-by-form", "partitions": "1"}, "/actions/topic-create"
    assert visitor.post(path, fields, x_csrf_token="").status == 403
    assert visitor.post(path, fields, x_csrf_token="0" * 64).status == 403
    assert visitor.post(path, fields, cookie="").status == 403
    assert visitor.post(path, fields, origin="http://evil.example").status == 403
    assert visitor.post(path, fields, origin="null").status == 403
    assert visitor.post(path, fields, sec_fetch_site="cross-site").status == 403
    assert visitor.post(path, fields, sec_fetch_site="same-site").status == 403
    assert "made-by-form" not in ask(f"{node.admin_url}/topics").text
    asked = visitor.post(path, fields, origin=node.admin_url, sec_fetch_site="same-origin")
    seal = asked.text.split('data-seal="')[1].partition('"')[0]
    assert visitor.post(path, fields, x_confirmed=seal, x_csrf_token="").status == 403
    assert "made-by-form" not in ask(f"{node.admin_url}/topics").text
    assert " created." in visitor.post(path, fields, x_confirmed=seal, origin=node.admin_url).text
    until(lambda: "made-by-form" in ask(f"{node.admin_url}/topics").text)


def test_another_visitors_secret_does_not_fit(node: ServerProcess) -> None:
    one, other = Visitor(node.admin_url), Visitor(node.admin_url)
    assert one.secret != other.secret
    assert (
        one.post("/actions/topic-create", {"topic": "t2", "partitions": "1"}, x_csrf_token=other.secret).status == 403
    )


def test_programs_report_in_with_json_and_pages_of_others_cannot(node: ServerProcess) -> None:
    url = f"{node.admin_url}/api/spark/progress"
    assert ask(url, "POST", body=PROGRESS, Content_Type="application/json").status == 204
    assert ask(url, "POST", body=PROGRESS, Content_Type="text/plain").status == 403
    assert ask(url, "POST", body=PROGRESS, Content_Type="application/json", Origin="http://evil.example").status == 403
    assert ask(url, "POST", body=b'{"query": 7}', Content_Type="application/json").status == 400
    assert ask(url, "POST", body=b"x", Content_Type="application/json").status == 400
    assert ask(url, "POST", body=b" " * 3_000_000, Content_Type="application/json").status == 413
    assert [query["query"] for query in ask(f"{node.admin_url}/api/spark/queries").json()["queries"]] == ["q1"]


def test_every_answer_forbids_what_pages_need_not(node: ServerProcess) -> None:
    for path in ("/", "/topics", "/metrics", "/healthz", "/static/app.js", "/nowhere"):
        headers = ask(f"{node.admin_url}{path}").headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


# -- settings ------------------------------------------------------------------------------------------------------


def test_beyond_loopback_a_token_is_needed_or_a_word() -> None:
    def check(**flags: object) -> None:
        check_exposure(load_config(None, {}, {f"admin.{name}": value for name, value in flags.items()}).config)

    check()
    check(host="::1")
    check(host="0.0.0.0", token=HASH)
    check(host="0.0.0.0", enabled=False)
    with pytest.raises(BrokerError, match=r"admin\.token"):
        check(host="0.0.0.0")
    check_exposure(load_config(None, {}, {"admin.host": "0.0.0.0", "auth.allow_open": True}).config)
    with pytest.raises(BrokerError, match="64 hexadecimal"):
        check(token="plain text")


def test_the_hash_is_not_shown() -> None:
    loaded = load_config(None, {}, {"admin.token": HASH})
    assert loaded.flat()["admin.token"] == "…"
