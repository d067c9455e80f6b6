"""`braid kv`: the key-value store."""

import click

from braidlog.cli import LazyGroup

_KEYS = "braidlog.cli.kv.keys"


@click.group(
    cls=LazyGroup,
    lazy={
        "get": (f"{_KEYS}:get", "Print the value of a key."),
        "set": (f"{_KEYS}:set_", "Set a key to a string."),
        "del": (f"{_KEYS}:delete", "Delete keys."),
        "keys": ("braidlog.cli.kv.names:keys", "List keys by name."),
        "scan": ("braidlog.cli.kv.names:scan", "List keys with their values."),
        "expire": (f"{_KEYS}:expire", "Set a key's time to live."),
        "ttl": (f"{_KEYS}:ttl", "Print a key's time to live."),
        "incr": (f"{_KEYS}:incr", "Increment a counter."),
        "lpush": (f"{_KEYS}:lpush", "Prepend values to a list."),
        "rpush": (f"{_KEYS}:rpush", "Append values to a list."),
        "lpop": (f"{_KEYS}:lpop", "Remove and print the first value of a list."),
        "rpop": (f"{_KEYS}:rpop", "Remove and print the last value of a list."),
        "lrange": (f"{_KEYS}:lrange", "Print a range of a list."),
        "hset": (f"{_KEYS}:hset", "Set fields of a hash."),
        "hget": (f"{_KEYS}:hget", "Print a field of a hash."),
        "hdel": (f"{_KEYS}:hdel", "Delete fields of a hash."),
        "hgetall": (f"{_KEYS}:hgetall", "Print all fields of a hash."),
        "watch": ("braidlog.cli.kv.watch:watch", "Print changes as they happen."),
        "stats": ("braidlog.cli.kv.node:stats", "Print counters of the store."),
        "memory": ("braidlog.cli.kv.node:memory", "Print memory usage."),
        "snapshot": ("braidlog.cli.kv.node:snapshot", "Write a snapshot of all keys."),
        "verify": ("braidlog.cli.kv.offline:verify", "Verify every byte of a stopped node's store."),
        "repair": ("braidlog.cli.kv.offline:repair", "Repair a damaged store of a stopped node."),
        "salvage": (
            "braidlog.cli.kv.salvage:salvage",
            "List or apply writes that the cluster has lost.",
        ),
    },
    epilog="""\b
Example:
  braid kv set greeting hello --ttl 60
  braid kv get greeting
  braid kv incr visits --by 10

\b
Additional exit codes:
  1  no such key or field, or the condition did not hold
  3  refused: wrong type, too large, out of memory, not authorized
  5  no server reachable, or no answer
""",
)
def kv() -> None:
    """Read, write and watch keys of a key-value store.

    --url or BRAID_KV_URL names the store: mayfly://[:TOKEN@]HOST[:PORT], mayfly+tls://…. Keys, fields and values are UTF-8
    text. A value `-` is read from standard input.
    """
