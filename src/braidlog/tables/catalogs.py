"""How a catalog of pyiceberg's is opened: so that nothing of it stays open, and two processes share one.

Knows: that a catalog may be a database. Refuses to know: tables.
Invariant: no connection to a database outlives what it was opened for. A file of SQLite would stay open, and may stay locked for
all others, until Python's collector comes by; nobody who is given a catalog has to close it.
"""

from collections.abc import Mapping
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

LOCK_SECONDS: Final = 60
"""So long a commit waits while others hold a file of SQLite. Python's 5 are less than a busy disk takes for a few of theirs."""


class UnpooledSqlCatalog(SqlCatalog):
    """pyiceberg's, with a connection for each thing that is done."""

    @property
    def engine(self) -> Engine:
        return self._engine

    @engine.setter
    def engine(self, made: Engine) -> None:
        self._engine = create_engine(made.url, echo=made.echo, poolclass=NullPool)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """The catalog of these properties; `name` unless they have another."""
    told = dict(properties)
    name, uri = told.pop("name", name), told.get("uri", "")
    if uri.startswith("sqlite") and "timeout" not in make_url(uri).query:
        patient = make_url(uri).update_query_dict({"timeout": str(LOCK_SECONDS)})
        told["uri"] = patient.render_as_string(hide_password=False)
    if told.get("type") == "sql":
        told["py-catalog-impl"] = f"{__name__}.{UnpooledSqlCatalog.__name__}"
        del told["type"]  # pyiceberg takes the one or the other
    try:
        return load_catalog(name, **told)
    except OperationalError:
        # Of two that make its tables at the same time, one is told that they are there. They are, from now on.
        return load_catalog(name, **told)
