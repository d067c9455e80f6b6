"""Access control of the schema registry: basic authentication, Host, Origin, sizes and content types.

The node checks names, secrets and rules. The admin token has full access, as on the admin port. Pages of other sites
cannot change anything: changes are JSON, which browsers do not send across sites without a preflight request, and a
foreign Origin is refused. Without authentication an unknown Host is refused (DNS rebinding).
"""

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from braidlog.console.access_control import REQUESTS_MAX, Keys, is_our_host
from braidlog.console.node_client import Node, NodeError
from braidlog.model.actor import CONSOLE
from braidlog.registry.errors import Code, RegistryError

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
CONTENT_TYPES: Final = frozenset(
    {CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json", "application/octet-stream"}
)
ADMINISTERS: Final = frozenset({"PUT", "DELETE"})
_REGISTERS: Final = re.compile(r"/subjects/.*/versions/?")
PATH_CHARS_MAX: Final = 300
BODY_BYTES_MAX: Final = 2 * 1024 * 1024
_SUFFIXES: Final = ("-key", "-value")

Wish = tuple[str, str | None]
"""An operation on a topic; None: on the registry itself."""


def topic_of(subject: str) -> str:
    """Return the topic whose rules apply to a subject: the part before -key or -value, or the subject's name."""
    return next((subject.removesuffix(each) for each in _SUFFIXES if subject.endswith(each)), subject)


class Client:
    """The client of a request."""

    def __init__(self, access: "Access", name: str, secret: str, address: str, *, is_admin: bool) -> None:
        self._access = access
        self._proof = (name, secret, address)
        self.is_admin = is_admin
        self.principal = CONSOLE if is_admin else ""
        """The authenticated principal."""
        self.has_changed = False
        """Whether the request changed anything; serializers register existing schemas at every start."""

    async def may_each(self, wishes: Sequence[Wish]) -> list[bool]:
        """Return which operations the client may do. Raises if its credentials are wrong."""
        if self.is_admin:
            return [True] * len(wishes)
        found = await self._access.node.may(*self._proof, list(wishes))
        self.principal = found.principal
        if not found.is_known:
            raise RegistryError(Code.UNAUTHORIZED, "Unauthorized: send a name and its token, or the admin token")
        return found.allowed

    async def require(self, operation: str, subject: str | None) -> None:
        topic = None if subject is None else topic_of(subject)
        if not all(await self.may_each([(operation, topic)])):
            what = "the registry" if topic is None else f"topic {topic!r}"
            raise RegistryError(Code.FORBIDDEN, f"User is denied operation {operation} on {what}")

    async def visible(self, subjects: Sequence[str]) -> set[str]:
        """Return the subjects that the client may see."""
        topics = sorted({topic_of(each) for each in subjects})
        allowed = await self.may_each([("describe", each) for each in topics])
        seen = {topic for topic, may in zip(topics, allowed, strict=True) if may}
        return {each for each in subjects if topic_of(each) in seen}


class Access:
    def __init__(self, node: Node, keys: Keys) -> None:
        self.node = node
        self._keys = keys

    async def client(self, headers: Headers, address: str) -> Client:
        kind, _, shown = headers.get("authorization", "").partition(" ")
        name, secret = "", ""
        if kind.lower() == "bearer":
            secret = shown.strip()
        elif kind.lower() == "basic":
            name, secret = _basic(shown)
        is_admin = bool(secret) and self._keys.is_required and self._keys.fits(secret)
        return Client(self, name, secret, address, is_admin=is_admin)


def _basic(shown: str) -> tuple[str, str]:
    try:
        name, _, secret = base64.b64decode(shown.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return name, secret


Routes = Callable[[Request, Client], Awaitable[Response]]


class RegistryGate:
    """ASGI application that checks requests before the routes."""

    def __init__(self, routes: Routes, access: Access, hosts: Sequence[str]) -> None:
        self._routes = routes
        self._access = access
        self._hosts = frozenset(name.lower() for name in hosts) | {"localhost"}
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self._under_way += 1
        try:
            response = await self._answer(request)
        except RegistryError as error:
            response = refusal(error)
        except NodeError as error:
            response = refusal(RegistryError(Code.STORE_FAILED, str(error)))
        finally:
            self._under_way -= 1
        response.headers["x-content-type-options"] = "nosniff"
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        headers = request.headers
        if self._under_way > REQUESTS_MAX:
            raise RegistryError(Code.STORE_FAILED, f"limit of {REQUESTS_MAX} concurrent requests reached; retry")
        size = headers.get("content-length", "0")
        if not size.isdigit() or int(size) > BODY_BYTES_MAX or "transfer-encoding" in headers:
            raise RegistryError(Code.INVALID_SCHEMA, f"send Content-Length of at most {BODY_BYTES_MAX} bytes")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
            raise RegistryError(Code.FORBIDDEN, "cross-site request refused")
        kind = headers.get("content-type", "").partition(";")[0].strip()
        if int(size) and kind not in CONTENT_TYPES:
            raise RegistryError(Code.UNSUPPORTED_CONTENT, f"HTTP 415 Unsupported Media Type: send {CONTENT_TYPE}")
        client = await self._access.client(headers, request.client.host if request.client else "")
        if "authorization" not in headers and not is_our_host(headers.get("host", ""), self._hosts):
            raise RegistryError(Code.FORBIDDEN, "unknown host name; add it to admin.hosts")
        try:
            response = await self._routes(request, client)
        except RegistryError as error:
            await self._audit(request, client, f"refused ({error})", is_refused=True)
            raise
        await self._audit(request, client, f"status={response.status_code}")
        return response

    async def _audit(self, request: Request, client: Client, outcome: str, *, is_refused: bool = False) -> None:
        """Log changes and denied requests in the node's log; unauthenticated requests change nothing and are not logged."""
        is_register = request.method == "POST" and _REGISTERS.fullmatch(request.url.path) is not None
        is_told = request.method in ADMINISTERS or (is_register and (client.has_changed or is_refused))
        if is_told and client.principal:
            path = bytes(request.scope["raw_path"]).decode("ascii", "replace")[:PATH_CHARS_MAX]
            address = request.client.host if request.client else ""
            await self._access.node.audit(client.principal, address, f"{request.method} {path} {outcome}", "registry")


def answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=CONTENT_TYPE)


def refusal(error: RegistryError) -> Response:
    response = answer({"error_code": int(error.code), "message": str(error)}, error.code.status)
    if error.code is Code.UNAUTHORIZED:
        response.headers["www-authenticate"] = 'Basic realm="braidlog"'
    return response
