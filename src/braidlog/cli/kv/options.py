"""Options and output that the commands of `braid kv` share."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import quote, urlsplit

import click

from braidlog.cli import NO, end
from braidlog.cli.terminal.arguments import together
from braidlog.cli.terminal.connection import check_local, read_token
from braidlog.cli.terminal.output import OUTPUT, print_json, shown
from braidlog.cli.terminal.secrets import not_typed
from braidlog.client.kv.blocking import KeyValue as BlockingKeyValue
from braidlog.client.kv.blocking import connect as connect_store
from braidlog.client.kv.client import KeyValue
from braidlog.model.record_json import json_bytes
from braidlog.wire.mayfly import DIALECT
from braidlog.wire.mayfly.messages import Consistency

DEFAULT_URL = DIALECT.local_url
TIMEOUT_SECONDS = 5.0

_SHOWN = "braidlog.kv.shown"


def _take_token(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    ctx.meta[_SHOWN] = read_token(value)


def _with_token(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return the URL with the token of --token-file in it."""
    not_typed(ctx, param, value)
    token = ctx.meta.get(_SHOWN)
    if token is None:
        return value
    parts = urlsplit(value)
    return parts._replace(netloc=f":{quote(token, safe='')}@{parts.netloc.rpartition('@')[2]}").geturl()


URL = together(
    click.option(
        "--url",
        "--server",
        "url",
        envvar="BRAID_KV_URL",
        default=DEFAULT_URL,
        show_default=True,
        callback=_with_token,
        help="Where the store is.",
    ),
    click.option(
        "--token-file",
        envvar="BRAID_KV_TOKEN_FILE",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_take_token,
        help="Holds the token to show there.",
    ),
)
"""--url, and the token to show there."""

SECONDS = click.option(
    "--timeout",
    type=click.FloatRange(0.01, 3600),
    default=TIMEOUT_SECONDS,
    show_default=True,
    help="Timeout in seconds.",
)


CONSISTENCY = click.option(
    "--consistency",
    type=click.Choice([each.name.lower() for each in Consistency]),
    help="In a cluster: replicas that acknowledge a write, and staleness of reads.  [default: quorum]",
)


def opened(url: str, timeout: float, consistency: str | None = None) -> BlockingKeyValue:
    """Connect to the store at a URL."""
    level = None if consistency is None else Consistency[consistency.upper()]
    try:
        KeyValue(url)  # report an invalid URL before a refused connection
        check_local(url)
        return connect_store(
            url, consistency=level, connect_timeout=timeout, request_timeout=timeout, retry_timeout=timeout
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def with_store(command: Callable[..., None]) -> Callable[..., None]:
    """Pass an open store as first argument; add --url, --timeout and -o."""

    @wraps(command)
    def run(*, url: str, timeout: float, **arguments: Any) -> None:  # noqa: ANN401 - click's own
        with opened(url, timeout) as store:
            command(store, **arguments)

    return together(URL, SECONDS, OUTPUT)(run)


def with_keys(command: Callable[..., None]) -> Callable[..., None]:
    """Like `with_store`, with --consistency too."""

    @wraps(command)
    def run(*, url: str, timeout: float, consistency: str | None, **arguments: Any) -> None:  # noqa: ANN401 - click's own
        with opened(url, timeout, consistency) as store:
            command(store, **arguments)

    return together(URL, SECONDS, CONSISTENCY, OUTPUT)(run)


def value_of(text: str) -> bytes:
    """Return the value of an argument; `-` reads standard input."""
    return sys.stdin.buffer.read() if text == "-" else text.encode()


def print_value(raw: bytes | None, output: str, missing: str) -> None:
    """Print a value; exit with 1 if it is missing."""
    if raw is None:
        end(NO, missing)
    elif output == "json":
        print_json({"value": json_bytes(raw)})
    else:
        click.echo(shown(raw))


def print_number(name: str, number: int, output: str) -> None:
    if output == "json":
        print_json({name: number})
    else:
        click.echo(str(number))
