"""Number formats and page templates. Autoescape is on for all templates, and no template disables it."""

from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from braidlog.console.access_control import Guard
from braidlog.console.assets import Assets
from braidlog.model.actor import CONSOLE
from braidlog.model.reporting.node_report import Welcome

PAGES: Final = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/keys", "Keys"),
    ("/transactions", "Transactions"),
    ("/access", "Access"),
    ("/connections", "Connections"),
    ("/cluster", "Cluster"),
    ("/schemas", "Schemas"),
    ("/spark", "Spark"),
    ("/settings", "Settings"),
)
UNKNOWN: Final = "\u2013"
_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEPS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))


def in_bytes(count: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in _BYTES[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_BYTES[-1]}"


def in_counts(count: float | None) -> str:
    """1234567 → 1 234 567, with narrow blanks; None is a dash."""
    return UNKNOWN if count is None else f"{count:,.0f}".replace(",", "\u202f")


def in_seconds(seconds: float | None) -> str:
    """93784 → 1 d 2 h; 0.25 → 250 ms."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    parts = []
    left = int(seconds)
    for unit, size in _STEPS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])


def in_utc(time_ms: float | None) -> str:
    if time_ms is None:
        return UNKNOWN
    return f"{datetime.fromtimestamp(time_ms / 1000, tz=UTC):%Y-%m-%d %H:%M:%S}Z"


def in_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def in_lines(text: str) -> str:
    """Indent JSON; return other text unchanged."""
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.DecodeError:
        return text


class Renderer:
    """Renders the templates of a console."""

    def __init__(self, guard: Guard, assets: Assets, welcome: Welcome) -> None:
        assert files("braidlog.console").joinpath("templates").is_dir()
        self._guard = guard
        self._templates = Environment(
            loader=PackageLoader("braidlog.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.filters |= {
            "bytes": in_bytes,
            "count": in_counts,
            "seconds": in_seconds,
            "utc": in_utc,
            "json": in_json,
            "lines": in_lines,
        }
        self._templates.globals |= {
            "asset": assets.address,
            "node": welcome.node,
            "version": welcome.version,
            "has_token": guard.has_token,
            "takes_principals": guard.takes_principals,
            "needs_sign_in": guard.needs_sign_in,
            "read_only": guard.read_only,
            "pages": PAGES,
        }

    def page(self, request: Request, name: str, status: int = 200, **values: Any) -> Response:  # noqa: ANN401 - any page's
        """Render a complete page; sets the session cookie of a new browser."""
        secret, cookie = self._guard.greet(request)
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        who, roles = request.scope["principal"], request.scope["roles"]
        told = {
            "form_secret": secret,
            "path": path,
            "page": name,
            "principal": "" if who == CONSOLE else who,
            "roles": roles,
        }
        text = self._templates.get_template(name).render(values, **told)
        response = HTMLResponse(text, status)
        if cookie is not None:
            self._guard.put_cookie(response, cookie)
        return response

    def explain(self, request: Request, title: str, sentence: str, status: int) -> Response:
        """Render a page with a title and one sentence."""
        return self.page(request, "missing.html", status, title=title, sentence=sentence)

    def fragment(self, name: str, status: int = 200, **values: Any) -> Response:  # noqa: ANN401 - any fragment's
        """Render a fragment that htmx inserts into a page."""
        return HTMLResponse(self._templates.get_template(name).render(values), status)
