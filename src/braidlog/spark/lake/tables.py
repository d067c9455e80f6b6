"""Opens tables by kind and location."""

import os
from collections.abc import Callable, Mapping

from braidlog.spark.lake import NO_PARQUET, STORES
from braidlog.spark.lake.contract import Table
from braidlog.spark.lake.editions import parse_edition
from braidlog.spark.lake.errors import LakeError
from braidlog.spark.lake.object_files import is_uri


def open_table(
    kind: str,
    path: str | None,
    *,
    name: str | None = None,
    catalog: Mapping[str, str] | None = None,
    store: Mapping[str, str] | None = None,
    edition: str | None = None,
) -> Table:
    """Return the table, which need not exist yet. Only the library of its kind must be installed. `store`: properties
    of its object store, in pyiceberg's names. `edition`: the edition whose rows it must have (`editions`)."""
    if kind not in _OPENERS:
        raise LakeError(
            f"table = {kind}: {NO_PARQUET}" if kind == "parquet" else f"table = {kind}: use delta or iceberg"
        )
    table = _OPENERS[kind](None if path is None else _whole(path), name, dict(catalog or {}), dict(store or {}))
    table.edition = parse_edition(edition)
    return table


def _delta(path: str | None, name: str | None, catalog: dict[str, str], store: dict[str, str]) -> Table:
    if path is None:
        raise LakeError("table = delta: a Delta table needs a path; set path")
    if name is not None or catalog:
        raise LakeError("table = delta: a Delta table has only a path; remove name and catalog.*")
    if is_uri(path) and not path.startswith(STORES["delta"]):
        raise LakeError(
            f"{path}: a Delta table must be on a disk that all machines share, or in an S3-compatible store, s3://"
        )
    try:
        from braidlog.spark.lake.delta import DeltaLakeTable  # noqa: PLC0415
    except ImportError as error:
        raise LakeError(f"Delta tables need `pip install 'braidlog[lake]'`: {error}") from error
    return DeltaLakeTable(path, store)


def _iceberg(path: str | None, name: str | None, catalog: dict[str, str], store: dict[str, str]) -> Table:
    try:
        from braidlog.spark.lake.iceberg import IcebergTable, local_catalog  # noqa: PLC0415
    except ImportError as error:
        raise LakeError(f"Iceberg tables need `pip install 'braidlog[lake]'`: {error}") from error
    if path is not None and is_uri(path):
        raise LakeError(f"{path}: an Iceberg table in an object store needs name and catalog.* instead of a path")
    home = None
    if not catalog:
        if path is None:
            raise LakeError("an Iceberg table needs a catalog (catalog.type, catalog.uri …) or a path")
        home, catalog = path, local_catalog(path)
    if name is None:
        if path is None:
            raise LakeError("which table of the catalog? set name = namespace.table")
        name = f"default.{os.path.basename(path)}"
    if "." not in name:
        raise LakeError(f"name = {name}: it must be namespace.table")
    return IcebergTable(name, {**catalog, **store}, home=home)


_OPENERS: dict[str, Callable[[str | None, str | None, dict[str, str], dict[str, str]], Table]] = {
    "delta": _delta,
    "iceberg": _iceberg,
}


def _whole(path: str) -> str:
    path = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
    return path.rstrip("/") if is_uri(path) else os.path.abspath(path)
