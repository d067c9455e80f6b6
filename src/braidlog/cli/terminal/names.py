"""Shell completion of topics, groups and keys of the node that the options, the environment or a profile name.

Completion takes a second at most, and never prints an error.
"""

from collections.abc import Callable
from itertools import islice

import click

from braidlog.client.blocking import Client
from braidlog.client.errors import ClientError

SECONDS_MAX = 1.0
UNANSWERED = (ClientError, click.ClickException, ValueError, TypeError, OSError)
KEYS_MAX = 200
Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def _completed(ask: Callable[[Client], list[str]]) -> Completion:
    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from braidlog.cli.terminal.connection import Node, NodeOptions, node_options  # noqa: PLC0415 - imports click options

        given = {name: context.params[name] for name in NodeOptions.__struct_fields__ if name in context.params}
        try:
            options = node_options(context, given, context.params.get("profile"))
            with Node(options.url(), SECONDS_MAX).connect() as client:
                return [name for name in ask(client) if name.startswith(incomplete)]
        except UNANSWERED:
            return []

    return complete


def complete_keys(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete a limited number of keys, since a store may have many."""
    from braidlog.cli.kv.options import opened  # noqa: PLC0415 - imports click options
    from braidlog.client.kv.scanning import names_in  # noqa: PLC0415

    try:
        with opened(context.params["url"], SECONDS_MAX) as store:
            names = list(islice(names_in(store, incomplete.encode()), KEYS_MAX))
    except (*UNANSWERED, KeyError):
        return []
    return [name.decode() for name in names if name.isascii() and name.decode().isprintable() and b" " not in name]


complete_topics = _completed(lambda client: client.admin.list_topics())
complete_groups = _completed(lambda client: client.admin.list_groups())
