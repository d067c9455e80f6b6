"""The key-value engine: a keyspace in memory, the log that outlives it, and the clock that orders its changes.

Knows: keys, values, expiry, memory, and how all of it comes back after a crash. Refuses to know: wires, the event loop, topics.
May import: storage, model, codec.

A program that uses the store of some server asks here, too: `braidlog.kv.connect(url)` blocks, `braidlog.kv.aio.connect(url)` is
for asyncio, `braidlog.kv.commands` are what `run` takes. They live in `braidlog.client`, and nothing of it is imported before it
is asked for: a server does without.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidlog.client.kv import client as aio
    from braidlog.client.kv import commands
    from braidlog.client.kv.blocking import connect

_HOMES = {
    "aio": ("braidlog.client.kv.client", None),
    "commands": ("braidlog.client.kv.commands", None),
    "connect": ("braidlog.client.kv.blocking", "connect"),
}

__all__ = ["aio", "commands", "connect"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'braidlog.kv' has no attribute {name!r}")
    home, inside = _HOMES[name]
    module = import_module(home)
    return module if inside is None else getattr(module, inside)
