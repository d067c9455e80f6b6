"""How a catalog of pyiceberg's is opened: so that nothing of it stays open, and two processes share one.

Knows: that a catalog may be a database. Refuses to know: tables.
Invariant: no connection to a database outlives what it was opened for. A file of SQLite would stay open, and may stay locked for
all others, until Python's collector comes by; nobody who is given a catalog has to close it.
"""

from collections.abc import Mapping
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import NullPool, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

LOCK_SECONDS: Final = 60
"""So long a commit waits while others hold a file of SQLite. Python's 5 are less than a busy disk takes for a few of theirs."""


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """The catalog of these properties; `name` unless they have another."""
    told = dict(properties)
    name = told.pop("name", name)
    if str(told.get("uri", "")).startswith("sqlite"):
        uri = make_url(told["uri"])
        told["uri"] = uri.update_query_dict({"timeout": str(LOCK_SECONDS), **uri.query}).render_as_string(
            hide_password=False
        )
    try:
        found = load_catalog(name, **told)
    except OperationalError:
        # Of two that make its tables at the same time, one is told that they are there. They are, from now on.
        found = load_catalog(name, **told)
    if isinstance(found, SqlCatalog):
        found.engine.dispose()
        found.engine = create_engine(found.engine.url, echo=found.engine.echo, poolclass=NullPool)
    return found
