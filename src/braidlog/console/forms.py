"""What people send: records, topics, their token.

Knows: the fields of forms. Refuses to know: how pages look; whether the form is ours (the guard has looked).
Invariant: a form that cannot be understood changes nothing, and is told why.
"""

from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response

from braidlog.client.errors import ClientError
from braidlog.console.clients import Clients
from braidlog.console.guard import Guard, is_ours
from braidlog.console.rendering import Renderer
from braidlog.model.record import Header

HEADERS_MAX: Final = 100


class FormError(ValueError):
    """A field that cannot be understood."""


class Forms:
    """One for this process."""

    def __init__(self, clients: Clients, guard: Guard, renderer: Renderer) -> None:
        self._clients = clients
        self._guard = guard
        self._renderer = renderer

    async def login_page(self, request: Request) -> Response:
        return self._renderer.page(request, "login.html", next=request.query_params.get("next", "/"))

    async def login(self, request: Request) -> Response:
        fields = await _fields(request)
        cookie = await self._guard.enter(fields.get("token", ""))
        if cookie is None:
            return self._renderer.fragment("said.html", 403, ok=False, text="This is not the token.")
        wanted = fields.get("next", "/")
        response = self._renderer.fragment("said.html", ok=True, text="Come in.")
        response.headers["hx-redirect"] = wanted if is_ours(wanted) else "/"
        self._guard.put_cookie(response, cookie)
        return response

    async def create_topic(self, request: Request) -> Response:
        fields = await _fields(request)
        name = fields.get("topic", "").strip()
        try:
            count = _integer(fields, "partitions", 1)
            await self._clients.admin.create_topic(name, 1 if count is None else count)
        except (FormError, ClientError) as error:
            return self._said(error)
        return self._renderer.fragment("said.html", ok=True, text=f"{name} is made.")

    async def produce(self, request: Request) -> Response:
        topic, fields = request.path_params["topic"], await _fields(request)
        try:
            placed = await self._clients.produce(
                topic,
                None if "null" in fields else _bytes(fields, "value"),
                key=_bytes(fields, "key") if fields.get("key") else None,
                headers=_headers(fields.get("headers", "")),
                partition=_integer(fields, "partition", 0),
            )
        except (FormError, ClientError, TimeoutError) as error:
            return self._said(error)
        return self._renderer.fragment(
            "said.html", ok=True, text=f"Stored: partition {placed.partition}, offset {placed.offset}."
        )

    def _said(self, error: Exception) -> Response:
        """Told where the form stands: htmx shows answers that are not errors of HTTP."""
        return self._renderer.fragment("said.html", ok=False, text=str(error) or "It took too long.")


async def _fields(request: Request) -> dict[str, str]:
    """The last of each. The body was measured before it was taken (`guard.py`)."""
    try:
        body = (await request.body()).decode()
        return {name: values[-1] for name, values in parse_qs(body, keep_blank_values=True, max_num_fields=50).items()}
    except ValueError:
        return {}


def _integer(fields: dict[str, str], name: str, low: int) -> int | None:
    text = fields.get(name, "").strip()
    if not text:
        return None
    if not text.isdigit() or len(text) > 9 or int(text) < low:
        raise FormError(f"{name} is a number from {low} on, not {text[:40]!r}")
    return int(text)


def _bytes(fields: dict[str, str], name: str) -> bytes:
    """Text as it is; with `<name>-is-hex`, hexadecimal digits."""
    text = fields.get(name, "")
    if f"{name}-is-hex" not in fields:
        # A text area ends its lines as mail does; whoever wrote the value did not.
        return text.replace("\r\n", "\n").encode()
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise FormError(f"{name}: these are not hexadecimal digits") from error


def _headers(text: str) -> tuple[Header, ...]:
    """`name: value` on each line."""
    found = []
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip():
            raise FormError(f"a header is written name: value, not {line[:40]!r}")
        found.append((name.strip(), value.strip().encode()))
    if len(found) > HEADERS_MAX:
        raise FormError(f"a record has at most {HEADERS_MAX} headers here")
    return tuple(found)
