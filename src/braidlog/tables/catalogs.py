"""Opens pyiceberg catalogs without leaving connections open, also if two processes share one.

No database connection outlives the operation that opened it. Otherwise a SQLite file would stay open, and possibly
locked for other processes, until Python's garbage collector runs; callers never close a catalog. Does not handle:
tables.
"""

from collections.abc import Mapping
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

LOCK_SECONDS: Final = 60
"""How long a commit waits for a SQLite lock. Python's default of 5 s is too short for several commits on a busy
disk."""


class UnpooledSqlCatalog(SqlCatalog):
    """pyiceberg's SQL catalog, with one connection per operation."""

    @property
    def engine(self) -> Engine:
        return self._engine

    @engine.setter
    def engine(self, made: Engine) -> None:
        self._engine = create_engine(made.url, echo=made.echo, poolclass=NullPool)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open the catalog with these properties; `name` is its default name."""
    options = dict(properties)
    name, uri = options.pop("name", name), options.get("uri", "")
    if uri.startswith("sqlite") and "timeout" not in make_url(uri).query:
        patient = make_url(uri).update_query_dict({"timeout": str(LOCK_SECONDS)})
        options["uri"] = patient.render_as_string(hide_password=False)
    if options.get("type") == "sql":
        options["py-catalog-impl"] = f"{__name__}.{UnpooledSqlCatalog.__name__}"
        del options["type"]  # pyiceberg accepts only one of the two
    try:
        return load_catalog(name, **options)
    except OperationalError:
        # Two processes may create its tables concurrently: one gets an error that they exist, which is fine.
        return load_catalog(name, **options)
