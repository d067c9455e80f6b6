"""Access control of the admin port: Host, Origin, tokens, cookies, and security headers of every response.

Pages of other sites can neither read nor change anything:
- A Host that is not an address, localhost or configured is refused (DNS rebinding).
- A request that changes something needs our own Origin, and the form secret of our pages.
- If a token is configured or sign-in is required, unauthenticated clients reach only /healthz, /readyz and sign-in.
  Answers to wrong tokens are delayed, one at a time.
- A signed-in user sees pages if the node's rules let the user view everything, and admin pages if the rules allow it.
  The node authorizes the user's changes, as on any other listener (`clients.py`).
- A read-only console refuses all changes here.
- Responses run only our own scripts, and cannot be framed.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from braidlog.console.node_client import Node, NodeError
from braidlog.model.actor import CONSOLE
from braidlog.model.clock import Clock
from braidlog.model.reporting.node_report import Roles

NOBODY: Final = ""
"""Principal of a session without sign-in."""
SESSIONS: Final = ("/login", "/logout")
ADMINISTRATORS: Final = ("/settings", "/connections", "/api/connections", "/access")
"""Paths that only administrators see."""
HEALTH: Final = frozenset({"/health", "/healthz", "/readyz"})
OPEN: Final = HEALTH | {"/login"}
ALWAYS: Final = HEALTH | {"/metrics"}
"""Paths exempt from the limit of concurrent requests, so that health checks do not fail under load."""
REQUESTS_MAX: Final = 256
STATIC: Final = "/static/"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
JSON_POSTS: Final = frozenset({"/api/spark/progress"})
"""JSON endpoints without a form secret; browsers cannot send JSON across sites without a preflight request."""
BODY_BYTES_MAX: Final = 2 * 1024 * 1024
SESSION_SECONDS: Final = 12 * 3600
PAUSE_SECONDS: Final = 0.3
FORM_HEADER: Final = "x-csrf-token"

_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Keys:
    """The admin token's hash, and the secret that signs cookies and seals."""

    def __init__(self, token_hash: str, secret: str) -> None:
        self._token_hash = bytes.fromhex(token_hash)
        self._secret = secret.encode()
        self._trying = asyncio.Lock()

    @property
    def is_required(self) -> bool:
        return bool(self._token_hash)

    def fits(self, token: str) -> bool:
        return hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._token_hash)

    async def proves(self, token: str) -> bool:
        """Return whether `token` is the admin token. Wrong tokens are answered one at a time, each after a delay."""
        if self.fits(token):
            return True
        async with self._trying:
            await asyncio.sleep(PAUSE_SECONDS)
        return False

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.digest(self._secret, f"{purpose}:{text}".encode(), "sha256").hex()

    def seal(self, session: "Session", text: str) -> str:
        """Return the signature with which a browser confirms exactly this text."""
        return self._sign("seal", f"{session.form_secret}:{text}")

    # -- sessions: id.principal.expiry.signature -------------------------------------------------------------

    def new_session(self, now: float, principal: str = NOBODY) -> str:
        text = f"{secrets.token_hex(16)}.{principal.encode().hex()}.{int(now) + SESSION_SECONDS}"
        return f"{text}.{self._sign('session', text)}"

    def read_session(self, cookie: str, now: float) -> "Session | None":
        text, _, signature = cookie.rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._sign("session", text).encode()):
            return None
        number, name, until = text.split(".")
        if now >= int(until):
            return None
        return Session(self._sign("form", number), bytes.fromhex(name).decode())


class Session:
    """Session of a browser, read from its cookie."""

    def __init__(self, form_secret: str, principal: str) -> None:
        self.form_secret = form_secret
        self.principal = principal


_STRANGER: Final = Session("", NOBODY)


class Guard:
    """ASGI middleware in front of the app."""

    app: ASGIApp
    """The app; set after construction, since its pages need the guard."""
    refusal: Callable[[Request, str], Response]
    """Renders the page for a denied request; set with `app`."""

    def __init__(self, keys: Keys, node: Node, port: int, clock: Clock) -> None:
        welcome = node.welcome
        self._keys = keys
        self._node = node
        self._hosts = frozenset(name.lower() for name in welcome.hosts) | {"localhost"}
        self.read_only = welcome.read_only
        self.takes_principals = welcome.has_principals and (welcome.sign_in or keys.is_required)
        self.needs_sign_in = welcome.sign_in or keys.is_required
        self._is_tls = bool(welcome.tls_cert)
        self._has_pages = welcome.has_pages
        # Browsers share cookies between all ports of a host: two nodes on one machine need different cookie names.
        self.cookie = f"braid_console_{port}"
        self._clock = clock
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        counted = scope["path"] not in ALWAYS
        if counted and self._under_way >= REQUESTS_MAX:
            busy = PlainTextResponse(
                f"limit of {REQUESTS_MAX} concurrent requests reached; retry\n", 503, {"retry-after": "1"}
            )
            await busy(scope, receive, with_headers)
            return
        self._under_way += counted
        try:
            refused = await self._refuse(scope)
            await (refused or self.app)(scope, receive, with_headers)
        finally:
            self._under_way -= counted

    async def _refuse(self, scope: Scope) -> Response | None:
        """Return the refusal of a request; None if it is allowed."""
        asked = HTTPConnection(scope)
        headers, path = asked.headers, scope["path"]
        size = headers.get("content-length", "0")
        if scope["method"] not in SAFE and (
            not size.isdigit() or int(size) > BODY_BYTES_MAX or "transfer-encoding" in headers
        ):
            return PlainTextResponse(f"request body exceeds {BODY_BYTES_MAX} bytes", 413)
        session = self._keys.read_session(asked.cookies.get(self.cookie, ""), self._seconds())
        scope["session"] = session
        has_token = await self._shows_token(headers)
        scope["principal"] = CONSOLE if has_token or not self.needs_sign_in else (session or _STRANGER).principal
        scope["is_known"] = bool(scope["principal"])
        is_open = path in OPEN or path.startswith(STATIC)
        scope["roles"] = Roles()
        if not is_open:
            try:
                scope["roles"] = await self._roles(scope["principal"])
            except NodeError as error:
                return PlainTextResponse(f"{error}\n", 503)
        if not has_token and path not in HEALTH and not self._is_our_host(headers.get("host", "")):
            return PlainTextResponse("unknown host name; add it to admin.hosts\n", 421)
        if scope["method"] not in SAFE and (why := self._forged(scope, headers, session, has_token=has_token)):
            return PlainTextResponse(f"{why}\n", 403)
        if is_open:
            return None
        return self._not_allowed(scope, path) if scope["is_known"] else self._way_in(scope)

    async def _roles(self, principal: str) -> Roles:
        if principal in (NOBODY, CONSOLE):
            return Roles(*[principal == CONSOLE] * 3)
        return await self._node.roles(principal)

    def _not_allowed(self, scope: Scope, path: str) -> Response | None:
        """Return the refusal of an authenticated request; None if it is allowed."""
        roles: Roles = scope["roles"]
        who, why = scope["principal"], ""
        if not roles.view and path not in SESSIONS:
            why = (
                f"{who} may not view this console: add a rule that allows describe of all topics and groups "
                "(and check that the user or token still exists)"
            )
        elif path.startswith(ADMINISTRATORS) and not roles.administer:
            why = f"{who} may not view this page: it requires a rule that allows cluster"
        elif self.read_only and scope["method"] not in SAFE and path not in (*JSON_POSTS, *SESSIONS):
            why = "this console is read only (admin.read_only)"
        if not why:
            return None
        return self.refusal(Request(scope), why) if self._is_page(scope) else PlainTextResponse(f"{why}\n", 403)

    def _is_page(self, scope: Scope) -> bool:
        """Return whether the response is a page for a browser."""
        return self._has_pages and is_page(Request(scope))

    async def _shows_token(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return self._keys.is_required and kind.lower() == "bearer" and await self._keys.proves(token.strip())

    def _is_our_host(self, host: str) -> bool:
        return is_our_host(host, self._hosts)

    def _forged(self, scope: Scope, headers: Headers, session: Session | None, *, has_token: bool) -> str:
        """Return why a changing request does not come from our pages; "" if it does."""
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host", ""):
            return "cross-site request refused"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "cross-site request refused"
        if has_token:
            return ""
        if scope["path"] in JSON_POSTS:
            kind = headers.get("content-type", "").partition(";")[0].strip()
            return "" if kind == "application/json" else "send application/json"
        shown = headers.get(FORM_HEADER, "")
        if session is None or not hmac.compare_digest(shown.encode(), session.form_secret.encode()):
            return "the form has expired or is invalid; reload the page"
        return ""

    def _way_in(self, scope: Scope) -> Response:
        if self._is_page(scope):
            return RedirectResponse(f"/login?next={quote(scope['path'])}", 303)
        ways = ["sign in"] * self._has_pages + ["send the admin token: Authorization: Bearer …"] * self.has_token
        said = ", or ".join(ways) or "no way to authenticate: set admin.token, or enable the sign-in page (admin.pages)"
        return JSONResponse({"error": said}, 401, {"WWW-Authenticate": "Bearer"})

    def _seconds(self) -> float:
        return self._clock.now_ms() / 1000

    # -- for the pages ---------------------------------------------------------------------------------------

    def greet(self, request: Request) -> tuple[str, str | None]:
        """Return the form secret of a page, and the cookie to set if the browser has none."""
        session: Session | None = request.scope["session"]
        if session is not None:
            return session.form_secret, None
        cookie = self._keys.new_session(self._seconds())
        made = self._keys.read_session(cookie, self._seconds())
        assert made is not None
        return made.form_secret, cookie

    async def enter(self, principal: str, secret: str, address: str) -> str | None:
        """Return a session cookie for the admin token or the credentials of a principal; None if they are wrong."""
        if not principal:
            known = self._keys.is_required and await self._keys.proves(secret)
            return self._keys.new_session(self._seconds(), CONSOLE) if known else None
        if not self.takes_principals or not await self._node.sign_in(principal, secret, address):
            return None
        return self._keys.new_session(self._seconds(), principal)

    @property
    def has_token(self) -> bool:
        return self._keys.is_required

    def seal(self, request: Request, text: str) -> str:
        """Return the seal of `text` for this browser, which has a session or the token."""
        session: Session | None = request.scope["session"]
        return self._keys.seal(session or _STRANGER, text)

    def forget_cookie(self, response: Response) -> None:
        response.delete_cookie(self.cookie, path="/", httponly=True, samesite="strict", secure=self._is_tls)

    def put_cookie(self, response: Response, cookie: str) -> None:
        response.set_cookie(
            self.cookie,
            cookie,
            max_age=SESSION_SECONDS,
            path="/",
            httponly=True,
            samesite="strict",
            secure=self._is_tls,
        )


def is_page(request: Request) -> bool:
    """Return whether a browser requests a complete page."""
    headers = request.headers
    return request.method in SAFE and "text/html" in headers.get("accept", "") and "hx-request" not in headers


def is_our_host(host: str, names: frozenset[str]) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True  # an address cannot be rebound


def is_ours(next_page: str) -> bool:
    """Return whether the page after sign-in is a path of this console.

    Browsers read `\\` as `/` and ignore tabs and line ends, so paths that contain them are refused.
    """
    return re.fullmatch(r"/(?!/)[!-\[\]-~]*", next_page) is not None
