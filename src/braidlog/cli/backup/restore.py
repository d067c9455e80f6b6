"""`braid restore`: restores a data folder from a backup."""

from collections.abc import Mapping

import click
import msgspec

from braidlog.cli.backup.places import FOLDER, STORE_FILE, open_store
from braidlog.cli.terminal.output import DATA, TEXT_OR_JSON, hint, plural, print_json, progress, size
from braidlog.storage.files import OsDisk
from braidlog.tools.backup.restoring import restore_backup


class RestoreReport(msgspec.Struct, frozen=True):
    """Output of `braid restore -o json`."""

    backup: str
    data: str
    files: int
    size: int


@click.command(epilog="Example: braid restore /backups/node-1 ./data && braid serve --data-dir ./data")
@FOLDER
@DATA
@STORE_FILE
@click.option("--backup", "name", metavar="ID", help="Backup to restore.  [default: the newest]")
@TEXT_OR_JSON
def restore(folder: str, data: str, properties: Mapping[str, str], name: str | None, output: str) -> None:
    """Restore the data folder DATA from a backup in FOLDER.

    DATA must not exist, or be empty. Every byte is verified. An interrupted restore leaves a folder that no node opens;
    remove it and restore again. A node started on DATA has the id, users and rules of the original node: do not run
    both. A transaction that was open in the backup is aborted at its timeout, or when its producer returns.
    """
    disk = OsDisk()
    store = open_store(disk, folder, properties)
    manifest = store.load(name)
    with progress("restore", manifest.size) as advance:
        restore_backup(disk, store, manifest, data, advance)
    if output == "json":
        print_json(RestoreReport(manifest.backup, data, len(manifest.files), manifest.size))
        return
    click.echo(f"restored {plural(len(manifest.files), 'file')}, {size(manifest.size)}, of {manifest.backup} in {data}")
    hint(f"braid serve --data-dir {data}")
