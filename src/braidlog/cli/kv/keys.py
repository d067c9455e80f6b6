"""`braid kv get`, `set`, …: commands on a single key."""

from collections.abc import Callable

import click

from braidlog.cli import NO, end
from braidlog.cli.kv.options import print_number, print_value, value_of, with_keys
from braidlog.cli.terminal.arguments import pairs
from braidlog.cli.terminal.names import complete_keys
from braidlog.cli.terminal.output import print_json, print_table, shown
from braidlog.client.kv import commands as c
from braidlog.client.kv.blocking import KeyValue
from braidlog.model.record_json import json_bytes
from braidlog.wire.mayfly.messages import Condition

KEY = click.argument("key", shell_complete=complete_keys)
NUMBERS = {"ignore_unknown_options": True}
"""Parses -1 as a number instead of an option."""


@click.command("set")
@KEY
@click.argument("value")
@click.option("--ttl", type=click.IntRange(0, 2**32 - 1), default=0, help="Seconds until the key expires; 0: never.")
@click.option("--if-absent", "only_if", flag_value="IF_ABSENT", help="Only if the key does not exist.")
@click.option("--if-present", "only_if", flag_value="IF_PRESENT", help="Only if the key exists.")
@with_keys
def set_(store: KeyValue, key: str, value: str, ttl: int, only_if: str | None, output: str) -> None:
    """Set KEY to the string VALUE; replace a value of any kind."""
    condition = Condition[only_if or "ALWAYS"]
    stored = store.set(key, value_of(value), ttl_seconds=ttl, only_if=condition)
    if output == "json":
        print_json({"stored": stored})
    if not stored:
        end(NO, f"key {'already exists' if condition is Condition.IF_ABSENT else 'not found'}: {key}")


@click.command("del")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...", shell_complete=complete_keys)
@with_keys
def delete(store: KeyValue, keys: tuple[str, ...], output: str) -> None:
    """Delete each KEY of any kind; print how many existed."""
    outcomes = store.run([c.delete(key) for key in keys])
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    print_number("deleted", sum(outcomes), output)
    if not any(outcomes):
        end(NO, "no key found")


@click.command()
@KEY
@click.argument("seconds", type=click.IntRange(0, 2**32 - 1))
@with_keys
def expire(store: KeyValue, key: str, seconds: int, output: str) -> None:
    """Let KEY expire after SECONDS; 0: never."""
    if not store.expire(key, seconds):
        end(NO, f"key not found: {key}")
    elif output == "json":
        print_json({"ttl_seconds": seconds})


@click.command()
@KEY
@with_keys
def ttl(store: KeyValue, key: str, output: str) -> None:
    """Print the seconds until KEY expires, rounded up; 0: never."""
    seconds = store.ttl(key)
    if seconds is None:
        end(NO, f"key not found: {key}")
    else:
        print_number("ttl_seconds", seconds, output)


@click.command()
@KEY
@click.option("--by", type=int, default=1, show_default=True, help="Amount to add; may be negative.")
@with_keys
def incr(store: KeyValue, key: str, by: int, output: str) -> None:
    """Add to the counter KEY and print its new value; a missing counter starts at 0."""
    print_number("value", store.incr(key, by), output)


def _push(name: str, push: Callable[..., int], text: str) -> click.Command:
    def command(store: KeyValue, key: str, values: tuple[str, ...], output: str) -> None:
        print_number("length", push(store, key, *map(value_of, values)), output)

    values = click.argument("values", nargs=-1, required=True, metavar="VALUE...")
    return click.command(name, help=text)(KEY(values(with_keys(command))))


lpush = _push("lpush", KeyValue.lpush, "Prepend each VALUE to the list KEY, one after another; print the new length.")
rpush = _push("rpush", KeyValue.rpush, "Append each VALUE to the list KEY; print the new length.")


def _print_one(name: str, ask: Callable[[KeyValue, str], bytes | None], text: str) -> click.Command:
    def command(store: KeyValue, key: str, output: str) -> None:
        print_value(ask(store, key), output, f"key not found: {key}")

    return click.command(name, help=text)(KEY(with_keys(command)))


get = _print_one("get", KeyValue.get, "Print the value of KEY, a string or a counter.")
lpop = _print_one("lpop", KeyValue.lpop, "Remove and print the first value of the list KEY.")
rpop = _print_one("rpop", KeyValue.rpop, "Remove and print the last value of the list KEY.")


@click.command(context_settings=NUMBERS)
@KEY
@click.argument("start", type=int, default=0)
@click.argument("stop", type=int, default=-1)
@with_keys
def lrange(store: KeyValue, key: str, start: int, stop: int, output: str) -> None:
    """Print the values of the list KEY from START to STOP inclusive, or all; negative indexes count from the end."""
    values = store.lrange(key, start, stop)
    if output == "json":
        print_json([json_bytes(value) for value in values])
    else:
        for value in values:
            click.echo(shown(value))


@click.command()
@KEY
@click.argument("fields", nargs=-1, required=True, metavar="FIELD=VALUE...")
@with_keys
def hset(store: KeyValue, key: str, fields: tuple[str, ...], output: str) -> None:
    """Set each FIELD of the hash KEY; print how many are new."""
    found: dict[str | bytes, str | bytes] = {field: value_of(value) for field, value in pairs(fields, "hset").items()}
    print_number("added", store.hset(key, found), output)


@click.command()
@KEY
@click.argument("field")
@with_keys
def hget(store: KeyValue, key: str, field: str, output: str) -> None:
    """Print the value of FIELD of the hash KEY."""
    print_value(store.hget(key, field), output, f"field not found in {key}: {field}")


@click.command()
@KEY
@click.argument("fields", nargs=-1, required=True, metavar="FIELD...")
@with_keys
def hdel(store: KeyValue, key: str, fields: tuple[str, ...], output: str) -> None:
    """Delete each FIELD of the hash KEY; print how many existed."""
    count = store.hdel(key, *fields)
    print_number("deleted", count, output)
    if not count:
        end(NO, f"no field found in {key}")


@click.command()
@KEY
@with_keys
def hgetall(store: KeyValue, key: str, output: str) -> None:
    """Print every field of the hash KEY and its value."""
    found = store.hgetall(key)
    if output == "json":
        print_json([{"field": json_bytes(field), "value": json_bytes(value)} for field, value in found.items()])
    elif found:
        print_table(["FIELD", "VALUE"], [[shown(f), shown(v)] for f, v in found.items()])
    else:
        end(NO, f"key not found: {key}")
