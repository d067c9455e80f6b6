"""Options that name a node, its credentials and the timeout, combined into one URL.

A secret comes from a file or the environment, never from the command line (`secrets.py`).
"""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import click
import msgspec
from click.core import ParameterSource

from braidlog.cli.terminal.arguments import pairs, together
from braidlog.cli.terminal.output import QUIET
from braidlog.cli.terminal.profiles import ProfileError, load_profile
from braidlog.cli.terminal.secrets import not_typed
from braidlog.client.blocking import Client, connect
from braidlog.client.errors import ConnectError, Refusal, RefusedError
from braidlog.client.schemes import parse_url
from braidlog.client.session import Client as AioClient
from braidlog.client.session import connect as connect_aio
from braidlog.model.address import show_address
from braidlog.wire.kafka import DIALECT

DEFAULT_URL = DIALECT.local_url
TIMEOUT_SECONDS = 10.0
LOCAL_SECONDS = 1.0
_TLS = "+tls"
_FILE = click.Path(exists=True, dir_okay=False)

OPTIONS = together(
    click.option(
        "--server",
        envvar="BRAID_SERVER",
        show_envvar=True,
        default=DEFAULT_URL,
        show_default=True,
        metavar="URL",
        callback=not_typed,
        help="URL of any listener of a node: kafka://, cursus://, mlog://, rustlog://, flux://. HOST:PORT alone means kafka.",
    ),
    click.option(
        "--principal", envvar="BRAID_PRINCIPAL", show_envvar=True, metavar="NAME", help="User to authenticate as."
    ),
    click.option(
        "--token-file",
        envvar="BRAID_TOKEN_FILE",
        show_envvar=True,
        type=_FILE,
        help="File with the user's token or password.",
    ),
    click.option("--ca", envvar="BRAID_CA", show_envvar=True, type=_FILE, help="CA certificate file; enables TLS."),
    click.option(
        "--cert", envvar="BRAID_CERT", show_envvar=True, type=_FILE, help="Client certificate file; enables TLS."
    ),
    click.option(
        "--cert-key",
        envvar="BRAID_CERT_KEY",
        show_envvar=True,
        type=_FILE,
        help="Private key file of the client certificate.",
    ),
    click.option(
        "-X",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="URL option, e.g. isolation=read_committed; repeatable.",
    ),
    click.option(
        "--profile",
        envvar="BRAID_PROFILE",
        show_envvar=True,
        metavar="NAME",
        help="Profile with defaults of these options (`braid profile`).",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(0.01, 3600),
        default=TIMEOUT_SECONDS,
        show_default=True,
        help="Timeout in seconds.",
    ),
    QUIET,
)


class Node(msgspec.Struct, frozen=True):
    """Address and credentials of a node."""

    url: str
    timeout: float

    def __repr__(self) -> str:
        """Omit the URL, which may contain a token."""
        return f"<Node {self.url.partition('://')[0]}>"

    def with_option(self, name: str, value: str) -> "Node":
        """Return a copy with another URL option."""
        parts = urlsplit(self.url)
        options = {**dict(parse_qsl(parts.query, keep_blank_values=True)), name: value}
        return Node(parts._replace(query=urlencode(options)).geturl(), self.timeout)

    @contextmanager
    def connect(self) -> Iterator[Client]:
        try:
            connect_aio(self.url, **self._policy())  # report an invalid URL before a refused connection
            check_local(self.url)
            client = connect(self.url, **self._policy())
        except (ValueError, OSError) as error:  # of the URL, or of its certificates
            raise click.UsageError(str(error)) from error
        with client:
            _refuse_unknown(client.dialect, client.asked_for())
            yield client

    @asynccontextmanager
    async def connect_aio(self) -> AsyncIterator[AioClient]:
        """Connect for asyncio."""
        try:
            connecting = connect_aio(self.url, **self._policy())
        except (ValueError, OSError) as error:
            raise click.UsageError(str(error)) from error
        check_local(self.url)
        async with connecting as client:
            _refuse_unknown(client.dialect, await client.asked_for())
            yield client

    def _policy(self) -> dict[str, Any]:
        return dict.fromkeys(("connect_timeout", "request_timeout", "retry_timeout"), self.timeout)


def check_local(url: str) -> None:
    """Raise `ConnectError` immediately if the URL is local and the connection is refused, instead of retrying."""
    try:
        target = parse_url(url)
    except ValueError:
        return  # connecting reports the error
    if not all(host in ("localhost", "::1") or host.startswith("127.") for host, _ in target.nodes):
        return
    for address in target.nodes:
        try:
            socket.create_connection(address, timeout=LOCAL_SECONDS).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            return  # a listener exists, but is busy
        return
    shown = ", ".join(map(show_address, target.nodes))
    raise ConnectError(f"{shown}: connection refused; start a node with `braid dev`")


def _refuse_unknown(dialect: str, ways: list[str]) -> None:
    if ways:
        words = f"the server requires authentication ({', '.join(ways)}): pass --principal and --token-file"
        raise RefusedError(Refusal.NOT_ALLOWED, dialect, "", words)


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Connection options as typed."""

    server: str
    principal: str | None = None
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None
    options: tuple[str, ...] = ()
    timeout: float = TIMEOUT_SECONDS

    def url(self) -> str:
        """Return the URL with all options; options override the URL."""
        parts = urlsplit(self.server if "://" in self.server else f"kafka://{self.server}")
        scheme, hosts, token = parts.scheme, parts.netloc, read_token(self.token_file)
        if self.principal is not None:
            hosts = f"{quote(self.principal, safe='')}:{quote(token or '', safe='')}@{hosts.rpartition('@')[2]}"
        elif token is not None:
            raise click.UsageError("--token-file needs --principal, the token's user")
        named = {"cafile": self.ca, "certfile": self.cert, "keyfile": self.cert_key}
        files = {name: file for name, file in named.items() if file is not None}
        if files and not scheme.endswith(_TLS):
            scheme += _TLS
        options = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **pairs(self.options, "-X"), **files}
        return parts._replace(scheme=scheme, netloc=hosts, query=urlencode(options)).geturl()


def node_options(context: click.Context, given: dict[str, Any], profile: str | None) -> NodeOptions:
    """Combine options: command line and environment, then the named or default profile, then defaults."""
    try:
        known = load_profile(profile)
    except ProfileError as error:
        raise click.UsageError(str(error)) from error
    kept = {name: value for name, value in known.items() if _is_default(context, name)}
    if "server" in given and not _is_default(context, "server"):
        kept = {}  # a profile's principal and certificates are for its own server only
    return NodeOptions(**(given | kept))


def _is_default(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) in (None, ParameterSource.DEFAULT)


def read_token(file: str | None) -> str | None:
    """Return the first line of a file."""
    if file is None:
        return None
    try:
        return secret_of(Path(file).read_bytes(), file, "token")
    except OSError as error:
        raise click.UsageError(f"{file}: {error}") from error


def secret_of(raw: bytes, source: str, what: str) -> str:
    """Return the first line, stripped."""
    try:
        lines = raw.decode().splitlines()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source}: {error}") from error
    if not lines or not lines[0].strip():
        raise click.UsageError(f"{source} contains no {what}")
    return lines[0].strip()


def with_node(command: Callable[..., None]) -> Callable[..., None]:
    """Pass the node as first argument; add the connection options."""

    @wraps(command)
    def run(**arguments: Any) -> None:  # noqa: ANN401 - click's own
        context = click.get_current_context()
        given = {name: arguments.pop(name) for name in NodeOptions.__struct_fields__}
        options = node_options(context, given, arguments.pop("profile"))
        command(Node(options.url(), options.timeout), **arguments)

    return OPTIONS(run)


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a connected client as first argument; add the connection options."""

    @wraps(command)
    def run(node: Node, **arguments: Any) -> None:  # noqa: ANN401 - click's own
        with node.connect() as client:
            command(client, **arguments)

    return with_node(run)
