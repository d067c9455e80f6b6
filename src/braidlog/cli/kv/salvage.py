"""`braid kv salvage`: writes that were truncated from the logs of keys, for the operator to review."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from braidlog.cli import NO, end
from braidlog.cli.kv.options import SECONDS, URL, opened
from braidlog.cli.terminal.arguments import answered
from braidlog.cli.terminal.output import DATA, OUTPUT, moment, print_json, print_table, shown
from braidlog.client.kv import commands as c
from braidlog.client.kv.blocking import KeyValue
from braidlog.client.kv.commands import Command
from braidlog.kv.engine.values import pairs_of, strings_in
from braidlog.kv.replicated.log_records import SlotRecord
from braidlog.kv.replicated.salvage_files import Tail, keep_rest, kept_tails
from braidlog.kv.wal.wal_entries import Op
from braidlog.storage.files import OsDisk, join

TAIL_FOLDER = "kv-tails"
SHOWN_MAX = 3


@click.command("salvage")
@DATA
@click.option("--apply", "wanted", metavar="FILE", help="Apply this file as new writes, then delete it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@URL
@SECONDS
@OUTPUT
def salvage(*, data: str, wanted: str | None, yes: bool, url: str, timeout: float, output: str) -> None:
    """List or apply the writes that the node of folder DATA acknowledged at consistency ONE and that its cluster lacks.

    A leader that was fenced may have acknowledged writes that no other node has. When the node follows the new leader, it
    saves these writes to files and sends them to the leader; most files disappear within seconds. The remaining writes are
    older than a day, or come from a clock that is ahead. They could undo newer writes, so you decide whether to apply
    them.

    --apply applies the changes of one file in order, through the store at --url, as new writes: a SET replaces the current
    value, an INCR adds to it. Each change is removed from the file when it is done. If the command is interrupted, run
    it again: the change that was in progress may then be applied twice.

    \b
    Example:
      braid kv salvage ./data
      braid kv salvage ./data --apply 017-0000000003-00000000000000000042-000.tail --url mayfly://127.0.0.1:7275
    """
    disk = OsDisk()
    tails = {tail.path.rpartition("/")[2]: tail for tail in kept_tails(disk, join(data, TAIL_FOLDER))}
    if wanted is None:
        _show(tails, output)
        return
    if wanted not in tails:
        raise click.UsageError(f"unknown file {wanted}; files: {', '.join(tails) or 'none'}")
    tail = tails[wanted]
    if not yes and not answered(f"Apply {len(tail.records)} changes now?"):
        click.echo("Nothing changed.", err=True)
        end(NO)
    count = len(tail.records)
    with opened(url, timeout) as store:
        _apply(disk, tail, store)
    if output == "json":
        print_json({"file": wanted, "applied": count})
    else:
        click.echo(f"Applied {count} changes.")


def _apply(disk: OsDisk, tail: Tail, store: KeyValue) -> None:
    while tail.records:
        store.do(_COMMANDS[tail.records[0].op](tail.records[0]))
        tail = keep_rest(disk, tail, tail.records[1:])


_COMMANDS: Final[dict[Op, Callable[[SlotRecord], Command[Any]]]] = {
    Op.SET: lambda each: c.set_(each.key, each.argument, ttl_seconds=each.ttl_seconds),
    Op.DEL: lambda each: c.delete(each.key),
    Op.EXPIRE: lambda each: c.expire(each.key, each.ttl_seconds),
    Op.INCRBY: lambda each: c.incr(each.key, int.from_bytes(each.argument, "big", signed=True)),
    Op.LPUSH: lambda each: c.lpush(each.key, *strings_in(each.argument)),
    Op.RPUSH: lambda each: c.rpush(each.key, *strings_in(each.argument)),
    Op.HSET: lambda each: c.hset(each.key, dict(pairs_of(list(strings_in(each.argument))))),
    Op.HDEL: lambda each: c.hdel(each.key, *strings_in(each.argument)),
}
"""Client command per operation. Files never contain pops, nor changes that a leader makes itself (`kv/salvage.py`)."""


def _show(tails: dict[str, Tail], output: str) -> None:
    if output == "json":
        print_json([_figures(name, tail) for name, tail in tails.items()])
    elif tails:
        rows = [
            [name, str(tail.log), moment(_written(tail.records)), str(len(tail.records)), _keys(tail.records)]
            for name, tail in tails.items()
        ]
        print_table(["FILE", "LOG", "WRITTEN", "CHANGES", "KEYS"], rows)
    else:
        click.echo("No writes to salvage: the cluster has all writes that this node acknowledged.")


def _figures(name: str, tail: Tail) -> dict[str, Any]:
    keys = list(dict.fromkeys(shown(record.key) for record in tail.records))
    return {
        "file": name,
        "log": tail.log,
        "written_ms": _written(tail.records),
        "changes": [{"operation": each.op.name, "key": shown(each.key)} for each in tail.records],
        "keys": keys,
    }


def _written(records: Sequence[SlotRecord]) -> int:
    return max(record.stamp.wall_ms for record in records)


def _keys(records: Sequence[SlotRecord]) -> str:
    keys = list(dict.fromkeys(shown(record.key) for record in records))
    more = "" if len(keys) <= SHOWN_MAX else f" and {len(keys) - SHOWN_MAX} more"
    return ", ".join(keys[:SHOWN_MAX]) + more
