"""A dialect's description of itself, read by everything that lists dialects.

A package `wire/<name>/` declares `DIALECT` in its `__init__.py`, which imports no other part of the dialect: listing
all dialects must be cheap. A protocol between nodes declares `BETWEEN_NODES` instead. The other parts of a dialect
are imported by their path and name on first use:

    wire/<name>/operations.py      OPERATIONS, SECRETS    the operations, and the fields that no log shows
    wire/<name>/observer.py        class <Name>Observer   decodes captured traffic for the wire tools
    adapters/<name>/handlers.py    class <Name>Adapter    serves requests
    client/drivers/<name>          class <Name>Driver     the client; without one, the client does not support the dialect
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
"""Message type, or part of one → names of its secret attributes."""


class ListenerOption(msgspec.Struct, frozen=True):
    """A setting of this dialect's listener only; its adapter takes it as a keyword argument."""

    name: str
    default: bool | int | str
    bounds: tuple[int, int] | None = None


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    port: int
    """The default port of servers, and of URLs without a port."""
    listener_options: tuple[ListenerOption, ...] = ()
    has_topics: bool = True
    """False for a key-value protocol: `braidlog.kv.connect` supports it, `braidlog.connect` does not."""
    url_variants: dict[str, dict[str, str]] = {}
    """Additional columns of the client's capability table: a name, and the URL options that enable it."""
    table: str = "operations"
    """The module with the dialect's table: OPERATIONS, and SECRETS if it has any."""
    request_id: str | None = None
    """The field of a message's head in the wire log that pairs answers with requests. None: they are paired by order.
    """
    error_sql: str = ERROR_BY_NAME
    """SQL over an answer's `name` and `fields` in the wire log that gives its error, or null."""

    @property
    def local_url(self) -> str:
        """The URL of a node on this machine with the default port."""
        return f"{self.name}://127.0.0.1:{self.port}"

    @property
    def operations(self) -> tuple[Any, ...]:
        """The operations: rows with a name and further columns of the dialect's table."""
        return tuple(getattr(self._table, "OPERATIONS", ()))

    @property
    def secrets(self) -> Secrets:
        """The fields that no log shows."""
        found: Secrets = getattr(self._table, "SECRETS", {})
        return found

    @property
    def _table(self) -> ModuleType | None:
        module = f"braidlog.wire.{self.name}.{self.table}"
        return import_module(module) if find_spec(module) else None

    def part(self, module: str, suffix: str) -> Any:  # noqa: ANN401 - a class of any folder
        """Import the class `<Name><suffix>` of a module."""
        return getattr(import_module(module), f"{self.name.capitalize()}{suffix}")


def dialects() -> dict[str, Dialect]:
    """Return all dialects by name: the packages of `braidlog.wire` that declare one."""
    return _declared("DIALECT")


def watched() -> dict[str, Dialect]:
    """Return the dialects that the wire tools can read: those of clients, and between nodes."""
    return dialects() | _declared("BETWEEN_NODES")


def _declared(name: str) -> dict[str, Dialect]:
    packages = sorted(each.name for each in pkgutil.iter_modules(braidlog.wire.__path__) if each.ispkg)
    found = {each: getattr(import_module(f"braidlog.wire.{each}"), name, None) for each in packages}
    return {each: dialect for each, dialect in found.items() if dialect is not None}
