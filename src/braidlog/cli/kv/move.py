"""`braid kv move`: the keys of a node, or of a cluster, into another one.

Knows: where keys are found, what to say. Refuses to know: how a key is copied (`client/kv/copying.py`).
Invariant: the source is only read, and its folder locked meanwhile; what `--prepare` wrote there goes when all keys are moved.
"""

import threading
from collections.abc import Callable, Iterator

import click
import msgspec

from braidlog.cli import NO, end
from braidlog.cli.kv.options import SECONDS, opened, url_with_token
from braidlog.cli.kv.watch import FEED_URL
from braidlog.cli.terminal.connection import read_token
from braidlog.cli.terminal.output import OUTPUT, print_json, shown
from braidlog.cli.terminal.secrets import not_typed
from braidlog.client.blocking import Client, connect
from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.client.errors import Refusal, RefusedError
from braidlog.client.kv import commands as c
from braidlog.client.kv.blocking import KeyValue
from braidlog.client.kv.copying import KEYS_AT_ONCE, READING, Copied, Held, copy_keys, read_all
from braidlog.kv.feed import OPERATION, PART, TYPE
from braidlog.kv.local import RELEASED
from braidlog.kv.slots import FEED_TOPIC
from braidlog.kv.values import HashValue, ListValue, kind_of, write_value
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.files import Disk, OsDisk, join, write_whole
from braidlog.tools.keyvalue.inspect import STORE_FOLDER, node_of, open_dry

SHOWN_MAX = 20
TOLD_SECONDS = 2.0
LOOK_AGAIN_SECONDS = 0.1
_FILE = click.Path(exists=True, dir_okay=False)
_LIST_OPERATIONS = (b"lpush", b"rpush", b"lpop", b"rpop")


class MoveReport(msgspec.Struct, kw_only=True):
    """What was done. Every key that is `moved` was read back from the target."""

    source: str
    target: str
    keys: int
    moved: int
    same: int
    differing: list[str]


@click.command("move")
@click.argument("source", callback=not_typed)
@click.argument("target", required=False, callback=not_typed)
@click.option("--source-token-file", type=_FILE, help="Holds the token to show at SOURCE.")
@click.option("--target-token-file", type=_FILE, help="Holds the token to show at TARGET.")
@click.option("--overwrite", is_flag=True, help="Replace keys that hold something else at the target.")
@click.option("--prepare", is_flag=True, help="Let the cluster of the stopped node SOURCE make slots without its keys.")
@FEED_URL
@SECONDS
@OUTPUT
def move(  # noqa: PLR0913 - one parameter an option
    *,
    source: str,
    target: str | None,
    source_token_file: str | None,
    target_token_file: str | None,
    overwrite: bool,
    prepare: bool,
    feed_url: str,
    timeout: float,
    output: str,
) -> None:
    """Copy every key of SOURCE, with its type and time to live, into the store at TARGET, and read each one back.

    SOURCE is the data folder of a stopped node, or the mayfly:// URL of a running node or cluster, whose keys are named by its
    change feed (--feed-url). TARGET is a mayfly:// URL. Nothing is taken from SOURCE; let nobody write there meanwhile.

    If it is interrupted, run it again: what is there already is not written twice, and half a list or hash is completed. A key
    that holds something else at TARGET is told and left alone; with --overwrite it is replaced. Exits with 1 if there was one.

    A cluster whose first node has keys keeps them on that node. To put them into slots on all nodes (kv.replicated): stop that
    node, --prepare its folder, start it. When the slots are there, stop it once more and move its keys through the others. Until
    that is done clients do not find them.

    \b
    Example:
      braid kv move ./data --prepare
      braid kv move ./data mayfly://10.0.0.2,10.0.0.3
      braid kv move mayfly://10.0.0.1,10.0.0.2 mayfly://127.0.0.1 --feed-url kafka://10.0.0.1
    """
    disk = OsDisk()
    is_folder = "://" not in source
    if prepare:
        if target is not None or not is_folder:
            raise click.UsageError("--prepare takes the data folder of a stopped node, and no TARGET")
        _release(disk, source)
        return
    if target is None:
        raise click.UsageError("Missing argument 'TARGET': where the keys are to be, mayfly://HOST[:PORT]")
    from_url = url_with_token(source, read_token(source_token_file))
    with opened(url_with_token(target, read_token(target_token_file)), timeout) as store:
        held = _in_folder(disk, source) if is_folder else _in_store(from_url, feed_url, timeout)
        counts = _copied(store, held, overwrite=overwrite)
    differing = [shown(key) for key in counts.differing]
    report = MoveReport(
        source=source, target=target, keys=counts.keys, moved=counts.copied, same=counts.same, differing=differing
    )
    if output == "json":
        print_json(report)
    else:
        _show(report)
    if differing:
        end(NO)
    if is_folder and disk.exists(mark := join(source, STORE_FOLDER + RELEASED)):
        disk.remove(mark)


def _copied(store: KeyValue, held: Iterator[Held], *, overwrite: bool) -> Copied:
    clock = SystemClock()
    told, counts = clock.monotonic(), Copied()
    for counts in copy_keys(store, held, clock, overwrite=overwrite):
        if clock.monotonic() - told > TOLD_SECONDS:
            told = clock.monotonic()
            click.echo(f"{counts.keys} keys read, {counts.copied} moved", err=True)
    return counts


def _show(report: MoveReport) -> None:
    for key in report.differing[:SHOWN_MAX]:
        click.echo(f"differs: {key}")
    if len(report.differing) > SHOWN_MAX:
        click.echo(f"differs: {len(report.differing) - SHOWN_MAX} more (-o json has all)")
    click.echo(
        f"{report.keys} keys: {report.moved} moved and read back, {report.same} were there already, "
        f"{len(report.differing)} differ"
    )
    if report.differing:
        click.echo("Those that differ were not changed, or changed meanwhile; --overwrite replaces them.")


def _release(disk: Disk, data: str) -> None:
    lock = disk.lock(join(data, "LOCK"))
    try:
        keys = len(open_dry(disk, data, node_of(disk, data)).keyspace)
        if not disk.exists(mark := join(data, STORE_FOLDER + RELEASED)):
            write_whole(disk, mark, b"")
        disk.sync_folder(data)
    finally:
        lock.release()
    click.echo(f"{keys} keys stay in {join(data, STORE_FOLDER)} when the cluster of this node puts keys into slots.")
    click.echo(
        "Start it, without kv.replicated = false; when its log says that keys are in slots, stop it, and run\n"
        f"  braid kv move {data} mayfly://ANOTHER-NODE"
    )


# -- keys of a folder ----------------------------------------------------------------------------------------------


def _in_folder(disk: Disk, data: str) -> Iterator[Held]:
    node = node_of(disk, data)
    lock = disk.lock(join(data, "LOCK"))
    try:
        keyspace = open_dry(disk, data, node).keyspace
        for key, value in keyspace.data.items():
            deadline_ms = keyspace.deadlines.get(key, 0)
            if isinstance(value, ListValue):
                yield Held(key, "list", list(value.items), deadline_ms)
            elif isinstance(value, HashValue):
                yield Held(key, "hash", value.fields, deadline_ms)
            else:
                yield Held(key, kind_of(value), write_value(value), deadline_ms)
    finally:
        lock.release()


# -- keys of a running store ---------------------------------------------------------------------------------------


def _in_store(url: str, feed_url: str, timeout: float) -> Iterator[Held]:
    """Named by the feed, which tells of a list or hash only now and then; read through the door."""
    clock = SystemClock()
    with opened(url, timeout) as store:

        def is_all(count: int) -> bool:
            return count >= (store.stats().keys or 0)

        kinds = list(_named(feed_url, timeout, is_all).items())
        found = 0
        for start in range(0, len(kinds), KEYS_AT_ONCE):
            piece = kinds[start : start + KEYS_AT_ONCE]
            answers = read_all(store, [each for key, kind in piece for each in (READING[kind](key), c.ttl(key))])
            for (key, kind), value, ttl in zip(piece, answers[::2], answers[1::2], strict=True):
                if isinstance(value, Exception):
                    raise BrokerError(
                        Reason.WRONG_TYPE, f"{shown(key)} is no {kind} any more: let nobody write to {url}"
                    )
                if ttl is not None and (value or kind in ("string", "counter")):
                    found += 1
                    yield Held(key, kind, value, clock.now_ms() + ttl * 1000 if ttl else 0)
        _wait_for(
            lambda: is_all(found), timeout, f"{found} keys were found, and {url} keeps more: is {feed_url} its feed?"
        )


def _named(feed_url: str, timeout: float, is_all: Callable[[int], bool]) -> dict[bytes, str]:
    """Every key and its kind, once the feed has as many as the nodes say they keep."""
    kinds: dict[bytes, str] = {}

    def has_all() -> bool:
        kinds.clear()
        kinds.update(_kinds_in_feed(feed_url, timeout))
        return is_all(len(kinds))

    lacks = f"the topic {FEED_TOPIC} at {feed_url} does not name all keys: is kv.feed off? A stopped node's folder needs none"
    _wait_for(has_all, timeout, lacks)
    return kinds


def _wait_for(condition: Callable[[], bool], timeout: float, why: str) -> None:
    """What was written or went a moment ago is not counted everywhere yet."""
    clock = SystemClock()
    deadline = clock.monotonic() + timeout
    while not condition():
        if clock.monotonic() > deadline:
            raise BrokerError(Reason.UNAVAILABLE, why)
        threading.Event().wait(LOOK_AGAIN_SECONDS)


def _kinds_in_feed(feed_url: str, timeout: float) -> dict[bytes, str]:
    """The keys that are there, by the last record of each; none while there is no feed, or it is made anew."""
    with connect(feed_url, retry_timeout=timeout, connect_timeout=timeout) as client:
        try:
            return _read_feed(client)
        except RefusedError as error:
            if error.reason is not Refusal.TOPIC_NOT_FOUND:
                raise
            return {}


def _read_feed(client: Client) -> dict[bytes, str]:
    kinds: dict[bytes, str] = {}
    partitions = range(client.admin.partition_count(FEED_TOPIC))
    ends = {each: client.admin.span(FEED_TOPIC, each).latest for each in partitions}
    with client.consumer() as consumer:
        consumer.assign(FEED_TOPIC, partitions)
        while any(consumer.reached(FEED_TOPIC, each) < end for each, end in ends.items()):
            for record in consumer.poll(timeout=LOOK_AGAIN_SECONDS):
                _note(kinds, record)
    return kinds


def _note(kinds: dict[bytes, str], record: ConsumedRecord) -> None:
    headers = dict(record.headers)
    key, kind = record.key or b"", headers.get(TYPE) or b""
    if kind == PART:
        kind = b"list" if headers.get(OPERATION) in _LIST_OPERATIONS else b"hash"
    if kind:
        kinds[key] = kind.decode()
    else:
        kinds.pop(key, None)
