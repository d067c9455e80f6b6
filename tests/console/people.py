"""A node that asks who somebody is, and four who sign in at its console: what each may do is what the node's rules say."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page
from tests.console.asking import Visitor
from tests.console.browsing import opened

import braidlog
from braidlog.client.blocking import Client
from braidlog.testing.server import ServerProcess

ADA, OLGA, VERA, NICK = "ada", "olga", "vera", "nick"
"""Administers; operates; views; may do nothing."""
ULLA = "ulla"
"""May view, as soon as there is such a user."""


def _rule(who: str, operations: str, names: str = 'topic = "*"\ngroup = "*"\nkey = "*"\ntransactional_id = "*"') -> str:
    return f'[[auth.rules]]\nprincipal = "{who}"\noperations = [{operations}]\n{names}\n'


SETTINGS = "\n".join(
    (
        "[admin]\nsign_in = true",
        "[auth.tokens]",
        *(f'{who} = "{hashlib.sha256(f"{who}-token".encode()).hexdigest()}"' for who in (ADA, OLGA, VERA, NICK)),
        _rule(ADA, '"*"', ""),
        _rule(OLGA, '"describe", "read", "write", "create", "delete", "alter"'),
        _rule(VERA, '"describe"'),
        _rule(ULLA, '"describe"'),
        _rule(NICK, '"read"', 'topic = "orders"'),
    )
)


@contextmanager
def guarded_node(folder: Path, *arguments: str) -> Iterator[ServerProcess]:
    (folder / "settings.toml").write_text(SETTINGS)
    with ServerProcess(folder / "data", "--config", str(folder / "settings.toml"), *arguments, admin=True) as running:
        yield running


def visitor(node: ServerProcess, who: str) -> Visitor:
    """Somebody who has signed in."""
    found = Visitor(node.admin_url)
    assert found.sign_in(who, f"{who}-token").headers["hx-redirect"] == "/"
    return found


def connected(node: ServerProcess, who: str = ADA) -> Client:
    return braidlog.connect(f"kafka://{who}:{who}-token@127.0.0.1:{node.ports['kafka']}")


@contextmanager
def looking(
    browser: Browser, node: ServerProcess, path: str, who: str = ADA, *, forgiven: str = "404"
) -> Iterator[Page]:
    """A page as somebody who has signed in: the cookie is got without the form, which has its own test.

    A page of what was just deleted asks for its figures once more: that is forgiven.
    """
    name, _, value = visitor(node, who).cookie.partition("=")
    with opened(browser, "about:blank", forgiven=forgiven) as page:
        page.context.add_cookies([{"name": name, "value": value, "url": node.admin_url}])
        page.goto(f"{node.admin_url}{path}")
        yield page
