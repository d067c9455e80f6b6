"""What the commands that talk to a node share: where it is, who asks, how long it is tried.

Knows: options, and how they become one URL. Refuses to know: commands, dialects.
Invariant: a secret comes from a file or the environment, never from what was typed (`secrets.py`).
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
        help="Any door of a node: kafka://, cursus://, mlog://, rustlog://, flux://. HOST:PORT alone is kafka's.",
    ),
    click.option("--principal", envvar="BRAID_PRINCIPAL", show_envvar=True, metavar="NAME", help="Who asks."),
    click.option(
        "--token-file", envvar="BRAID_TOKEN_FILE", show_envvar=True, type=_FILE, help="Its token or password."
    ),
    click.option("--ca", envvar="BRAID_CA", show_envvar=True, type=_FILE, help="Use TLS; whose signature to trust."),
    click.option("--cert", envvar="BRAID_CERT", show_envvar=True, type=_FILE, help="Use TLS; show this certificate."),
    click.option("--cert-key", envvar="BRAID_CERT_KEY", show_envvar=True, type=_FILE, help="The certificate's key."),
    click.option(
        "-X",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the URL, e.g. isolation=read_committed; may be repeated.",
    ),
    click.option(
        "--profile",
        envvar="BRAID_PROFILE",
        show_envvar=True,
        metavar="NAME",
        help="What is not given here is taken from it (`braid profile`).",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(0.01, 3600),
        default=TIMEOUT_SECONDS,
        show_default=True,
        help="Seconds to try.",
    ),
    QUIET,
)


class Node(msgspec.Struct, frozen=True):
    """Where a node is, as the options say."""

    url: str
    timeout: float

    def __repr__(self) -> str:
        """Without the URL, in which a token may stand."""
        return f"<Node {self.url.partition('://')[0]}>"

    def with_option(self, name: str, value: str) -> "Node":
        """The same, and another option of its URL."""
        parts = urlsplit(self.url)
        options = {**dict(parse_qsl(parts.query, keep_blank_values=True)), name: value}
        return Node(parts._replace(query=urlencode(options)).geturl(), self.timeout)

    @contextmanager
    def connect(self) -> Iterator[Client]:
        try:
            connect_aio(self.url, **self._policy())  # what is wrong with the URL comes before who is not there
            check_local(self.url)
            client = connect(self.url, **self._policy())
        except (ValueError, OSError) as error:  # of the URL, or of the certificates it names
            raise click.UsageError(str(error)) from error
        with client:
            _refuse_unknown(client.dialect, client.asked_for())
            yield client

    @asynccontextmanager
    async def connect_aio(self) -> AsyncIterator[AioClient]:
        """The same for asyncio."""
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
    """`ConnectError` at once if the URL means this machine and nobody listens there: who forgot to start a node need not wait."""
    try:
        target = parse_url(url)
    except ValueError:
        return  # who connects says what is wrong with it
    if not all(host in ("localhost", "::1") or host.startswith("127.") for host, _ in target.nodes):
        return
    for address in target.nodes:
        try:
            socket.create_connection(address, timeout=LOCAL_SECONDS).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            return  # somebody is there, and busy
        return
    shown = ", ".join(map(show_address, target.nodes))
    raise ConnectError(f"{shown} cannot be reached: nobody listens there; is a node running? `braid dev` starts one")


def _refuse_unknown(dialect: str, ways: list[str]) -> None:
    if ways:
        words = f"the server needs to know who asks ({', '.join(ways)}): pass --principal and --token-file"
        raise RefusedError(Refusal.NOT_ALLOWED, dialect, "", words)


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of all commands that talk to a node, as they were typed."""

    server: str
    principal: str | None = None
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None
    options: tuple[str, ...] = ()
    timeout: float = TIMEOUT_SECONDS

    def url(self) -> str:
        """One URL of all of them; what the URL itself says of the same is replaced."""
        parts = urlsplit(self.server if "://" in self.server else f"kafka://{self.server}")
        scheme, hosts, token = parts.scheme, parts.netloc, read_token(self.token_file)
        if self.principal is not None:
            hosts = f"{quote(self.principal, safe='')}:{quote(token or '', safe='')}@{hosts.rpartition('@')[2]}"
        elif token is not None:
            raise click.UsageError("--token-file needs --principal: pass the name the token belongs to")
        named = {"cafile": self.ca, "certfile": self.cert, "keyfile": self.cert_key}
        files = {name: file for name, file in named.items() if file is not None}
        if files and not scheme.endswith(_TLS):
            scheme += _TLS
        options = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **pairs(self.options, "-X"), **files}
        return parts._replace(scheme=scheme, netloc=hosts, query=urlencode(options)).geturl()


def node_options(context: click.Context, given: dict[str, Any], profile: str | None) -> NodeOptions:
    """As typed or in the environment; else as in the profile, the one that is named or the one in use; else the defaults."""
    try:
        known = load_profile(profile)
    except ProfileError as error:
        raise click.UsageError(str(error)) from error
    kept = {name: value for name, value in known.items() if _is_default(context, name)}
    if "server" in given and not _is_default(context, "server"):
        kept = {}  # who a profile's principal and certificates are for is its own server
    return NodeOptions(**(given | kept))


def _is_default(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) in (None, ParameterSource.DEFAULT)


def read_token(file: str | None) -> str | None:
    """The first line of a file."""
    if file is None:
        return None
    try:
        return secret_of(Path(file).read_bytes(), file, "token")
    except OSError as error:
        raise click.UsageError(f"{file}: {error}") from error


def secret_of(raw: bytes, source: str, what: str) -> str:
    """The first line, without blanks at its ends."""
    try:
        lines = raw.decode().splitlines()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source}: {error}") from error
    if not lines or not lines[0].strip():
        raise click.UsageError(f"{source} holds no {what}")
    return lines[0].strip()


def with_node(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first argument is the node, and which has the options of all that talk to a node."""

    @wraps(command)
    def run(**arguments: Any) -> None:  # noqa: ANN401 - click's own
        context = click.get_current_context()
        given = {name: arguments.pop(name) for name in NodeOptions.__struct_fields__}
        options = node_options(context, given, arguments.pop("profile"))
        command(Node(options.url(), options.timeout), **arguments)

    return OPTIONS(run)


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """The same with a client that is connected."""

    @wraps(command)
    def run(node: Node, **arguments: Any) -> None:  # noqa: ANN401 - click's own
        with node.connect() as client:
            command(client, **arguments)

    return with_node(run)
