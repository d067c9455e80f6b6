"""HTTP as a plain program speaks it: no browser, nothing added, every connection closed."""

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode, urlsplit

SECONDS_MAX = 60


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(url: str, method: str = "GET", *, body: bytes | None = None, **headers: str) -> Answer:
    """One request; header names are written with underscores."""
    with _connected(url) as (connection, target):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, body, named)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())


@contextmanager
def _connected(url: str) -> Iterator[tuple[http.client.HTTPConnection, str]]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS_MAX)
    try:
        yield connection, f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    finally:
        connection.close()


class Feed:
    """Server-sent events as (name, data), without those in `passed_over`. It is connected when made; close it to go away."""

    def __init__(self, url: str, passed_over: tuple[str, ...] = ("history", "progress")) -> None:
        self._passed_over = passed_over
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS_MAX)
        self._connection.request("GET", f"{parts.path}?{parts.query}")
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, Any]:
        name, data = "message", []
        while line := self._answer.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                data.append(text.removeprefix("data: "))
            elif not text and data and name not in self._passed_over:
                return name, json.loads("\n".join(data))
            elif not text:
                name, data = "message", []
        raise StopIteration

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


class Visitor:
    """A browser's manners without a browser: its cookie, and the form's secret of the page it was given."""

    def __init__(self, url: str) -> None:
        self.url = url
        page = ask(f"{url}/login", accept="text/html")
        self.cookie = page.headers["set-cookie"].partition(";")[0]
        found = re.search(r'name="form-secret" content="([0-9a-f]+)"', page.text)
        assert found is not None, page.text
        self.secret = found[1]

    def get(self, path: str) -> Answer:
        return ask(f"{self.url}{path}", cookie=self.cookie)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        sent = {
            "cookie": self.cookie,
            "x_csrf_token": self.secret,
            "content_type": "application/x-www-form-urlencoded",
        } | headers
        return ask(f"{self.url}{path}", "POST", body=urlencode(fields).encode(), **sent)

    def sign_in(self, principal: str, secret: str) -> Answer:
        """As somebody from now on, if the answer says so."""
        answer = self.post("/login", {"principal": principal, "token": secret})
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            page = ask(f"{self.url}/", accept="text/html", cookie=self.cookie)
            found = re.search(r'name="form-secret" content="([0-9a-f]+)"', page.text)
            self.secret = "" if found is None else found[1]
        return answer

    def act(self, action: str, **fields: str) -> Answer:
        """Ask for an action, and say yes to what it says that it will do; the last answer."""
        asked = self.post(f"/actions/{action}", fields)
        seal = re.search(r'data-seal="([0-9a-f]+)"', asked.text)
        return asked if seal is None else self.post(f"/actions/{action}", fields, x_confirmed=seal[1])


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Prometheus text as {(name, labels): value}, read by its own rules and not by the library that wrote it."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)", line)
        assert match is not None, line
        labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")
        found[match[1], frozenset(labels)] = float(match[3])
    return found
