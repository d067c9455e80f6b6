"""Forms that need no confirmation: sign-in, sign-out and producing records. An invalid form changes nothing."""

from starlette.requests import Request
from starlette.responses import Response

from braidlog.client.errors import ClientError
from braidlog.console.access_control import Guard, is_ours
from braidlog.console.form_fields import FormError, fields_of, headers_of, integer, raw_bytes
from braidlog.console.listener_clients import ClientsOf
from braidlog.console.node_client import NodeError
from braidlog.console.rendering import Renderer

UNKNOWN_ADDRESS = "unknown"


class Forms:
    """The forms of this process."""

    def __init__(self, clients: ClientsOf, guard: Guard, renderer: Renderer) -> None:
        self._clients = clients
        self._guard = guard
        self._renderer = renderer

    async def login_page(self, request: Request) -> Response:
        return self._renderer.page(request, "login.html", next=request.query_params.get("next", "/"))

    async def login(self, request: Request) -> Response:
        fields = await fields_of(request)
        principal, secret = fields.get("principal", "").strip(), fields.get("token", "")
        try:
            cookie = await self._guard.enter(principal, secret, address_of(request))
        except NodeError as error:
            return self._said(error)
        if cookie is None:
            wrong = "Wrong name or password." if principal else "Wrong admin token."
            return self._renderer.fragment("said.html", 403, ok=False, text=wrong)
        wanted = fields.get("next", "/")
        response = self._renderer.fragment("said.html", ok=True, text="Signed in.")
        response.headers["hx-redirect"] = wanted if is_ours(wanted) else "/"
        self._guard.put_cookie(response, cookie)
        return response

    async def logout(self, _: Request) -> Response:
        response = self._renderer.fragment("said.html", ok=True, text="Signed out.")
        response.headers["hx-redirect"] = "/login"
        self._guard.forget_cookie(response)
        return response

    async def produce(self, request: Request) -> Response:
        topic, fields = request.path_params["topic"], await fields_of(request)
        try:
            placed = await self._clients(request.scope["principal"]).produce(
                topic,
                None if "null" in fields else raw_bytes(fields, "value"),
                key=raw_bytes(fields, "key") if fields.get("key") else None,
                headers=headers_of(fields.get("headers", "")),
                partition=integer(fields, "partition", 0),
            )
        except (FormError, ClientError, TimeoutError) as error:
            return self._said(error)
        return self._renderer.fragment(
            "said.html", ok=True, text=f"Stored: partition {placed.partition}, offset {placed.offset}."
        )

    def _said(self, error: Exception) -> Response:
        """Show a message below the form; htmx ignores responses with an error status."""
        return self._renderer.fragment("said.html", ok=False, text=str(error) or "Timed out.")


def address_of(request: Request) -> str:
    """Return the address of the browser."""
    return UNKNOWN_ADDRESS if request.client is None else request.client.host
