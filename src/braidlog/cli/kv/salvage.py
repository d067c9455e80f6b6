"""`braid kv salvage`: writes that were cut from the logs of keys, and that a person has to decide about."""

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
@click.option("--apply", "wanted", metavar="FILE", help="Carry out what is in this file, as new writes; then it goes.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@URL
@SECONDS
@OUTPUT
def salvage(*, data: str, wanted: str | None, yes: bool, url: str, timeout: float, output: str) -> None:
    """Show the writes that the node with the folder DATA acknowledged with consistency ONE, and that its cluster does not have.

    A node that led a log of keys, and was taken for dead, may have taken writes that no other node has. When it follows the new
    leader they are kept in files, and sent to it; most are gone from here within seconds. What stays is older than a day, or from
    a clock that is ahead: what was written since could be undone by it, so you decide whether it still counts.

    --apply carries out the changes of one file in their order, through the store at --url, as if they were made now: a SET
    replaces what is there, an INCR adds to it. Each is taken from the file when it is done. If it is interrupted, run it again:
    the one change that was under way may then count twice.

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
        raise click.UsageError(f"{wanted} is not among the files there: {', '.join(tails) or 'there are none'}")
    tail = tails[wanted]
    if not yes and not answered(f"Carry out {len(tail.records)} changes now?"):
        click.echo("Nothing was changed.", err=True)
        end(NO)
    count = len(tail.records)
    with opened(url, timeout) as store:
        _apply(disk, tail, store)
    if output == "json":
        print_json({"file": wanted, "applied": count})
    else:
        click.echo(f"{count} changes were carried out.")


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
"""What a client would ask for. Pops, and what a leader does by itself, are in no tail (`kv/replicated/salvage.py`)."""


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
        click.echo("Nothing is kept: the cluster has all that this node acknowledged.")


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
