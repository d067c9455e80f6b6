"""`braid restore`: a data folder made of a back-up."""

from collections.abc import Mapping

import click
import msgspec

from braidlog.cli.backup.places import FOLDER, STORE_FILE, open_store
from braidlog.cli.terminal.output import DATA, TEXT_OR_JSON, hint, plural, print_json, progress, size
from braidlog.storage.files import OsDisk
from braidlog.tools.backup.restoring import restore_backup


class RestoreReport(msgspec.Struct, frozen=True):
    """What `braid restore -o json` prints."""

    backup: str
    data: str
    files: int
    size: int


@click.command(epilog="Example: braid restore /backups/node-1 ./data && braid serve --data-dir ./data")
@FOLDER
@DATA
@STORE_FILE
@click.option("--backup", "name", metavar="ID", help="Which one. [default: the newest]")
@TEXT_OR_JSON
def restore(folder: str, data: str, properties: Mapping[str, str], name: str | None, output: str) -> None:
    """Make the data folder DATA of a back-up in FOLDER. DATA must not be there yet, or be empty.

    Every byte is checked on its way. Interrupted, it leaves a folder that no node opens; remove it and restore again. The node
    that is started over DATA is the one that was backed up, with its id, users and rules: do not run both. A transaction that was
    open at the moment of the back-up is aborted when its time is over, or when its producer comes back.
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
