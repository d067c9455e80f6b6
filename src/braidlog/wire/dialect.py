"""What a dialect says of itself, once: everything that lists dialects reads this.

A package `wire/<name>/` declares `DIALECT` in its `__init__.py`, which imports nothing else of the dialect: listing all of them
must cost next to nothing. One that is spoken between nodes, and not by clients, declares `BETWEEN_NODES` instead. The other
parts of a dialect are found by their place and name, when they are first asked for:

    wire/<name>/operations.py      OPERATIONS, SECRETS    what can be asked, what no log shows
    wire/<name>/observer.py        class <Name>Observer   what the wire tools see of a conversation
    adapters/<name>/handlers.py    class <Name>Adapter    what the server does with requests
    client/drivers/<name>          class <Name>Driver     what the client says; without one, the client does not speak it
"""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

import msgspec

import braidlog.wire

ERROR_BY_NAME: Final = "CASE WHEN lower(name) LIKE 'err%' THEN coalesce(get_json_object(fields, '$.code'), name) END"

Secrets = Mapping[type, tuple[str, ...]]
"""Message type, or part of one → names of its attributes that are secret."""


class ListenerOption(msgspec.Struct, frozen=True):
    """A setting that only this dialect's listener has; its adapter takes it as a keyword."""

    name: str
    default: bool | int | str
    bounds: tuple[int, int] | None = None


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    port: int
    """The default port, of servers and of URLs without one."""
    listener_options: tuple[ListenerOption, ...] = ()
    has_topics: bool = True
    """False: it has keys; `braidlog.kv.connect` speaks it, `braidlog.connect` does not."""
    url_variants: dict[str, dict[str, str]] = {}
    """Further columns of the client's capability table: a name, and the URL's options that make it so."""
    table: str = "operations"
    """The module of the dialect that holds its table: OPERATIONS, and SECRETS if it has any."""
    request_id: str | None = None
    """The field of a message's head in the wire log that pairs answers with requests. None: by their order."""
    error_sql: str = ERROR_BY_NAME
    """SQL over an answer's `name` and `fields` in the wire log that gives its error, or null."""

    @property
    def local_url(self) -> str:
        """Where a node on this machine listens, unless its settings say otherwise."""
        return f"{self.name}://127.0.0.1:{self.port}"

    @property
    def operations(self) -> tuple[Any, ...]:
        """What can be asked: rows that have a name, and whatever else the dialect's table says of them."""
        return tuple(getattr(self._table, "OPERATIONS", ()))

    @property
    def secrets(self) -> Secrets:
        """What no log shows."""
        found: Secrets = getattr(self._table, "SECRETS", {})
        return found

    @property
    def _table(self) -> ModuleType | None:
        module = f"braidlog.wire.{self.name}.{self.table}"
        return import_module(module) if find_spec(module) else None

    def part(self, module: str, suffix: str) -> Any:  # noqa: ANN401 - a class of any folder
        """The class `<Name><suffix>` of a module."""
        return getattr(import_module(module), f"{self.name.capitalize()}{suffix}")


def dialects() -> dict[str, Dialect]:
    """All of them by name: the packages of `braidlog.wire` that declare one."""
    return _declared("DIALECT")


def watched() -> dict[str, Dialect]:
    """Those that the wire tools can read: of clients, and between nodes."""
    return dialects() | _declared("BETWEEN_NODES")


def _declared(name: str) -> dict[str, Dialect]:
    packages = sorted(each.name for each in pkgutil.iter_modules(braidlog.wire.__path__) if each.ispkg)
    found = {each: getattr(import_module(f"braidlog.wire.{each}"), name, None) for each in packages}
    return {each: dialect for each, dialect in found.items() if dialect is not None}
