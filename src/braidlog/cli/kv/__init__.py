"""`braid kv`: a key-value store, seen from a terminal.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_KEYS = "braidlog.cli.kv.keys"


@click.group(
    cls=LazyGroup,
    lazy={
        "get": (f"{_KEYS}:get", "Print the value of a key."),
        "set": (f"{_KEYS}:set_", "Make a key a string."),
        "del": (f"{_KEYS}:delete", "Forget keys."),
        "keys": ("braidlog.cli.kv.names:keys", "Print names of keys."),
        "scan": ("braidlog.cli.kv.names:scan", "Print keys with what they hold."),
        "expire": (f"{_KEYS}:expire", "Let a key go in so many seconds."),
        "ttl": (f"{_KEYS}:ttl", "Seconds until a key goes."),
        "incr": (f"{_KEYS}:incr", "Add to a counter."),
        "lpush": (f"{_KEYS}:lpush", "Put values before a list."),
        "rpush": (f"{_KEYS}:rpush", "Put values behind a list."),
        "lpop": (f"{_KEYS}:lpop", "Take the first value of a list."),
        "rpop": (f"{_KEYS}:rpop", "Take the last value of a list."),
        "lrange": (f"{_KEYS}:lrange", "Print values of a list."),
        "hset": (f"{_KEYS}:hset", "Set fields of a hash."),
        "hget": (f"{_KEYS}:hget", "Print the value of a field."),
        "hdel": (f"{_KEYS}:hdel", "Take fields from a hash."),
        "hgetall": (f"{_KEYS}:hgetall", "Print every field and its value."),
        "watch": ("braidlog.cli.kv.watch:watch", "Follow every change as it is made."),
        "stats": ("braidlog.cli.kv.node:stats", "Counts of the node."),
        "memory": ("braidlog.cli.kv.node:memory", "What the keys take."),
        "snapshot": ("braidlog.cli.kv.node:snapshot", "Write everything to one file."),
        "verify": ("braidlog.cli.kv.offline:verify", "Read every byte of a stopped node's store; say what is lost."),
        "repair": ("braidlog.cli.kv.offline:repair", "Make a damaged store whole; set the old files aside."),
        "salvage": (
            "braidlog.cli.kv.salvage:salvage",
            "Show writes that a node took and its cluster lacks; carry them out.",
        ),
    },
    epilog="""\b
Example:
  braid kv set greeting hello --ttl 60
  braid kv get greeting
  braid kv incr visits --by 10

\b
Exit codes, beside those of every command:
  1  there is no such key or field, or the condition did not hold
  3  the store refused: wrong type, too large, out of memory, not allowed
  5  no server was reached, or it gave no answer
""",
)
def kv() -> None:
    """Use a key-value store. It is found by --url or BRAID_KV_URL: mayfly://[:TOKEN@]HOST[:PORT], mayfly+tls://…

    Keys, fields and values are given as text, in UTF-8. A value `-` is read from standard input.
    """
