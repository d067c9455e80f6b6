"""Backup locations as options: a folder or a URI, and a file with the properties of its object store."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from braidlog.storage.files import Disk
from braidlog.tools.backup.place import open_place
from braidlog.tools.backup.store import BackupStore

FOLDER: Final = click.argument("folder", type=click.Path())
STORE_FILE: Final = click.option(
    "--store-file",
    "properties",
    envvar="BRAID_STORE_FILE",
    show_envvar=True,
    type=click.Path(exists=True, dir_okay=False),
    callback=lambda _context, _option, path: _properties(path),
    help="TOML file with the properties of FOLDER's object store, as in tables.catalog.",
)


def open_store(disk: Disk, folder: str, properties: Mapping[str, str]) -> BackupStore:
    return BackupStore(open_place(disk, folder, properties))


def _properties(path: str | None) -> dict[str, str]:
    """Read `"s3.endpoint" = "…"`; a name with dots without quotes is a nested table, and is flattened."""
    if path is None:
        return {}
    try:
        return dict(_flat("", tomllib.loads(Path(path).read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path}: {error}") from error


def _flat(before: str, said: Mapping[str, object]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in said.items():
        found += _flat(f"{before}{name}.", value) if isinstance(value, dict) else [(before + name, str(value))]
    return found
