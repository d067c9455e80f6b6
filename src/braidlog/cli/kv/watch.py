"""`braid kv watch`: prints the change feed of a store."""

import sys
from typing import Any

import click
import msgspec

from braidlog.cli import NO, end
from braidlog.cli.terminal.output import TEXT_OR_JSON, line_of, moment, shown
from braidlog.cli.terminal.secrets import not_typed
from braidlog.client.blocking import connect
from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.client.errors import Refusal, RefusedError
from braidlog.kv.engine.values import HashValue, ListValue, read_value
from braidlog.kv.feed.feed_records import EXPIRES, OPERATION, SEQUENCE, STAMP, TYPE
from braidlog.model.record_json import json_bytes
from braidlog.wire.rustlog import DIALECT

FEED_TOPIC = "__kv"
DEFAULT_URL = DIALECT.local_url
POLL_SECONDS = 1.0
VALUE_CHARS_MAX = 100
_KINDS = ("string", "counter", "list", "hash")


@click.command()
@click.option(
    "--feed-url",
    envvar="BRAID_FEED_URL",
    default=DEFAULT_URL,
    show_default=True,
    callback=not_typed,
    help="Listener from which the topic __kv is read; any protocol with headers.",
)
@click.option("--from-start", is_flag=True, help="Print the last change of every key first, then new changes.")
@click.option("-n", "count", type=click.IntRange(1), help="Stop after this many changes.")
@click.option("--prefix", default="", help="Only keys with this prefix.")
@TEXT_OR_JSON
def watch(feed_url: str, *, from_start: bool, count: int | None, prefix: str, output: str) -> None:
    """Print changes as they happen, until interrupted: one line each, with time, operation, key and new value.

    Changes are records of the topic __kv of the same node, which is created with the first change, unless kv.feed is off.
    In a cluster the topic has a partition for each of the 8 logs: changes of one key are in order, changes of
    different keys approximately.
    """
    try:
        client = connect(feed_url, retry_timeout=5.0, connect_timeout=5.0)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with client, client.consumer() as consumer:
        try:
            consumer.assign(FEED_TOPIC, start="earliest" if from_start else "latest")
        except RefusedError as error:
            if error.reason is not Refusal.TOPIC_NOT_FOUND:
                raise
            end(NO, f"no topic {FEED_TOPIC!r}: no key has changed yet, or kv.feed is off")
        left = sys.maxsize if count is None else count
        while left > 0:
            for record in consumer.poll(timeout=POLL_SECONDS):
                if left > 0 and (record.key or b"").startswith(prefix.encode()):
                    click.echo(line_of(_json(record)) if output == "json" else _line(record))
                    left -= 1
            sys.stdout.flush()


def _headers(record: ConsumedRecord) -> dict[str, str]:
    return {name: shown(value or b"") for name, value in record.headers}


def _value(record: ConsumedRecord, kind: str) -> Any:  # noqa: ANN401 - any JSON
    """Return the new value as JSON; None if the key was deleted, or the record has only a part of the value."""
    if kind not in _KINDS or record.value is None:
        return None  # not every protocol has null values: a record without a type means a deleted key
    value = read_value(kind, record.value)
    if isinstance(value, ListValue):
        return [json_bytes(item) for item in value.items]
    if isinstance(value, HashValue):
        return [{"field": json_bytes(field), "value": json_bytes(held)} for field, held in value.fields.items()]
    return value if isinstance(value, int) else json_bytes(value)


def _line(record: ConsumedRecord) -> str:
    headers = _headers(record)
    kind = headers.get(TYPE, "")
    when = "" if record.timestamp_ms is None else moment(record.timestamp_ms)
    value = "gone" if not kind else "…" if kind not in _KINDS else _value(record, kind)
    told = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "  ".join([when, headers.get(OPERATION, "?"), shown(record.key or b""), told[:VALUE_CHARS_MAX]])


def _json(record: ConsumedRecord) -> bytes:
    headers = _headers(record)
    told = {
        "sequence": int(headers.get(SEQUENCE, "0")),
        "timestamp_ms": record.timestamp_ms,
        "stamp": headers.get(STAMP),
        "operation": headers.get(OPERATION),
        "key": json_bytes(record.key or b""),
        "type": headers.get(TYPE),
        "value": _value(record, headers.get(TYPE, "")),
        "expires_ms": int(headers[EXPIRES]) if EXPIRES in headers else None,
    }
    return msgspec.json.encode(told)
