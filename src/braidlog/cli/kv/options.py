"""What the commands of `braid kv` share: the store, and how bytes look.

Knows: flags, exit codes, text and what is none. Refuses to know: commands.
"""

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
    """The URL, with the token of --token-file in it."""
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
    "--timeout", type=click.FloatRange(0.01, 3600), default=TIMEOUT_SECONDS, show_default=True, help="Seconds to try."
)


CONSISTENCY = click.option(
    "--consistency",
    type=click.Choice([each.name.lower() for each in Consistency]),
    help="In a cluster: by how many replicas a write is kept before it is answered, and how old what is "
    "read may be. Without it: quorum.",
)


def opened(url: str, timeout: float, consistency: str | None = None) -> BlockingKeyValue:
    """The store at a URL, as it was typed."""
    level = None if consistency is None else Consistency[consistency.upper()]
    try:
        KeyValue(url)  # what is wrong with the URL comes before who is not there
        check_local(url)
        return connect_store(
            url, consistency=level, connect_timeout=timeout, request_timeout=timeout, retry_timeout=timeout
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def with_store(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first argument is an open store, and which has --url, --timeout and -o."""

    @wraps(command)
    def run(*, url: str, timeout: float, **arguments: Any) -> None:  # noqa: ANN401 - click's own
        with opened(url, timeout) as store:
            command(store, **arguments)

    return together(URL, SECONDS, OUTPUT)(run)


def with_keys(command: Callable[..., None]) -> Callable[..., None]:
    """The same of a command about keys, which has --consistency too."""

    @wraps(command)
    def run(*, url: str, timeout: float, consistency: str | None, **arguments: Any) -> None:  # noqa: ANN401 - click's own
        with opened(url, timeout, consistency) as store:
            command(store, **arguments)

    return together(URL, SECONDS, CONSISTENCY, OUTPUT)(run)


def value_of(text: str) -> bytes:
    """A value as it was typed; `-` stands for standard input."""
    return sys.stdin.buffer.read() if text == "-" else text.encode()


def print_value(raw: bytes | None, output: str, missing: str) -> None:
    """One value, or the answer no."""
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
