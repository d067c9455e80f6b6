"""`braid kv keys` and `scan`: list keys and their values."""

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import click
import msgspec

from braidlog.cli.kv.options import with_keys
from braidlog.cli.terminal.arguments import Decorator, together
from braidlog.cli.terminal.output import print_json, print_table, shown
from braidlog.client.errors import RefusedError
from braidlog.client.kv import commands as c
from braidlog.client.kv.blocking import KeyValue
from braidlog.client.kv.commands import Command
from braidlog.client.kv.scanning import names_in
from braidlog.model.record_json import Bytes, json_bytes
from braidlog.wire.mayfly.messages import Status

_WILD = re.compile(r"[*?\[]")
_READING: dict[str, Callable[[bytes], Command[Any]]] = {"string": c.get, "list": c.lrange, "hash": c.hgetall}
_KEYS_AT_ONCE = 256
_SHOWN_CHARS = 60


class KeyNames(msgspec.Struct, kw_only=True):
    """Names of keys, unordered. `more`: --limit cut the list."""

    keys: list[Bytes]
    more: bool


class HashField(msgspec.Struct, kw_only=True):
    field: Bytes
    value: Bytes


class KeyRow(msgspec.Struct, kw_only=True):
    """A key and its content by kind: `value` of a string or counter, `items` of a list, `fields` of a hash.
    `ttl_seconds`: 0 means never."""

    key: Bytes
    kind: str
    ttl_seconds: int
    value: Bytes = None
    items: list[Bytes] = []
    fields: list[HashField] = []


class KeyRows(msgspec.Struct, kw_only=True):
    """Keys, unordered. `more`: --limit cut the list."""

    keys: list[KeyRow]
    more: bool


def _which(limit: int) -> Decorator:
    """Add PATTERN, --prefix and --limit to a command."""
    return together(
        click.argument("pattern", default="*"),
        click.option("--prefix", is_flag=True, help="PATTERN is what names begin with, and nothing in it is special."),
        click.option(
            "--limit", type=click.IntRange(1), default=limit, show_default=True, help="Maximum number to print."
        ),
    )


def _matching(store: KeyValue, pattern: str, *, prefix: bool) -> Iterator[bytes]:
    raw = pattern.encode()
    begin = raw if prefix else _WILD.split(pattern, maxsplit=1)[0].encode()
    return (name for name in names_in(store, begin) if prefix or fnmatchcase(name, raw))


def _say_more(limit: int) -> None:
    click.echo(f"list cut at {limit} keys; raise --limit to see more", err=True)


@click.command("keys")
@_which(1000)
@with_keys
def keys(store: KeyValue, pattern: str, prefix: bool, limit: int, output: str) -> None:  # noqa: FBT001 - click's own
    """List the keys that match PATTERN: * matches any text, ? one character, [ab] one of these characters.

    Keys come slot by slot, unordered. Nodes filter by the literal prefix of PATTERN, this command by the rest. A key that is
    created or deleted during the scan may be missing or listed. Keys that you may not read are left out.

    \b
    Example:
      braid kv keys 'user:*' --limit 20
      braid kv keys --prefix user:
    """
    found = _matching(store, pattern, prefix=prefix)
    if output == "json":
        names = list(islice(found, limit + 1))
        print_json(KeyNames(keys=[json_bytes(name) for name in names[:limit]], more=len(names) > limit))
        return
    for at, name in enumerate(found):
        if at == limit:
            _say_more(limit)
            break
        click.echo(shown(name))


@click.command("scan")
@_which(100)
@with_keys
def scan(store: KeyValue, pattern: str, prefix: bool, limit: int, output: str) -> None:  # noqa: FBT001 - click's own
    """List the keys that match PATTERN, as `braid kv keys` does, with kind, time to live and value.

    A time to live of 0 means never. Values are shortened on a terminal, and complete with -o json.

    \b
    Example:
      braid kv scan 'user:*'
      braid kv scan --prefix user: --limit 1000 -o json
    """
    names = list(islice(_matching(store, pattern, prefix=prefix), limit + 1))
    wanted, more = names[:limit], len(names) > limit
    rows = [row for at in range(0, len(wanted), _KEYS_AT_ONCE) for row in _read(store, wanted[at : at + _KEYS_AT_ONCE])]
    if output == "json":
        print_json(KeyRows(keys=[_row(*row) for row in rows], more=more))
        return
    if rows:
        print_table(
            ["KEY", "KIND", "TTL", "VALUE"], [(shown(key), kind, ttl, _text(held)) for key, kind, ttl, held in rows]
        )
    if more:
        _say_more(limit)


def _read(store: KeyValue, names: Sequence[bytes]) -> Iterator[tuple[bytes, str, int, Any]]:
    """Yield name, kind, time to live and value of the keys that still exist; tries one kind after another."""
    times = dict(zip(names, _read_all(store, [c.ttl(name) for name in names]), strict=True))
    held: dict[bytes, tuple[str, Any]] = {}
    for kind, read in _READING.items():
        left = [name for name in names if name not in held]
        answers = _read_all(store, [read(name) for name in left])
        held |= {
            name: (kind, each) for name, each in zip(left, answers, strict=True) if not isinstance(each, Exception)
        }
    for name, (kind, value) in ((name, held[name]) for name in names if name in held):
        if times[name] is not None and value is not None:
            yield name, kind, times[name], value


def _row(key: bytes, kind: str, ttl: int, held: Any) -> KeyRow:  # noqa: ANN401 - as its kind says
    row = KeyRow(key=json_bytes(key), kind=kind, ttl_seconds=ttl)
    if kind == "list":
        row.items = [json_bytes(each) for each in held]
    elif kind == "hash":
        row.fields = [HashField(field=json_bytes(field), value=json_bytes(value)) for field, value in held.items()]
    else:
        row.value = json_bytes(held)
    return row


def _text(held: bytes | list[bytes] | dict[bytes, bytes]) -> str:
    if isinstance(held, dict):
        text = " ".join(f"{shown(field)}={shown(value)}" for field, value in held.items())
    else:
        text = shown(held) if isinstance(held, bytes) else " ".join(map(shown, held))
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _read_all(store: KeyValue, commands: Sequence[Command[Any]]) -> list[Any]:
    """Return one result per command; a key of another kind yields its error, other failures are raised."""
    answers = store.run(commands)
    for answer in answers:
        is_other_kind = isinstance(answer, RefusedError) and answer.code == Status.WRONG_TYPE.name
        if isinstance(answer, Exception) and not is_other_kind:
            raise answer
    return answers
