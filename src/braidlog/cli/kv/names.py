"""`braid kv keys`: which keys there are."""

import re
from fnmatch import fnmatchcase
from itertools import islice

import click
import msgspec

from braidlog.cli.kv.options import with_keys
from braidlog.cli.terminal.output import print_json, shown
from braidlog.client.kv.blocking import KeyValue
from braidlog.client.kv.scanning import names_in
from braidlog.model.record_json import Bytes, json_bytes

_WILD = re.compile(r"[*?\[]")


class KeyNames(msgspec.Struct, kw_only=True):
    """Names of keys, in no order. `more`: there are others, beyond --limit."""

    keys: list[Bytes]
    more: bool


@click.command("keys")
@click.argument("pattern", default="*")
@click.option("--prefix", is_flag=True, help="PATTERN is what names begin with, and nothing in it is special.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Print so many at most.")
@with_keys
def keys(store: KeyValue, pattern: str, prefix: bool, limit: int, output: str) -> None:  # noqa: FBT001 - click's own
    """Print the names of keys that match PATTERN: * stands for any text, ? for one character, [ab] for one of these.

    Names come slot by slot and in no order; what all of them begin with is looked for by the nodes, the rest here. A key that
    is made or deleted meanwhile may be among them or not. Names that you may not read are left out.

    \b
    Example:
      braid kv keys 'user:*' --limit 20
      braid kv keys --prefix user:
    """
    raw = pattern.encode()
    begin = raw if prefix else _WILD.split(pattern, maxsplit=1)[0].encode()
    found = (name for name in names_in(store, begin) if prefix or fnmatchcase(name, raw))
    if output == "json":
        names = list(islice(found, limit + 1))
        print_json(KeyNames(keys=[json_bytes(name) for name in names[:limit]], more=len(names) > limit))
        return
    for at, name in enumerate(found):
        if at == limit:
            click.echo(f"there are more than {limit}: see --limit", err=True)
            break
        click.echo(shown(name))
