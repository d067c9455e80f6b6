"""`braid backup create`, `list`, `verify`, `prune`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click
import msgspec

from braidlog import __version__
from braidlog.cli import NO, end
from braidlog.cli.backup.places import FOLDER, STORE_FILE, open_store
from braidlog.cli.terminal.arguments import YES, confirm
from braidlog.cli.terminal.connection import Node, with_node
from braidlog.cli.terminal.output import (
    LISTING,
    OUTPUT,
    TEXT_OR_JSON,
    hint,
    moment,
    plural,
    print_json,
    print_listing,
    progress,
    size,
)
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.files import Disk, OsDisk
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.folder.folder_snapshot import (
    SnapshotBuilder,
    SnapshotFile,
    drop_snapshot,
    make_room,
    write_listing,
)
from braidlog.tools.backup.copying import create_backup, read_listing
from braidlog.tools.backup.manifest import Manifest
from braidlog.tools.backup.restoring import verify_backup


class BackupRow(msgspec.Struct, frozen=True):
    """Row of `braid backup list` and `create`. `added`: the bytes that this backup added to the folder."""

    backup: str
    created: str
    files: int
    size: int
    added: int
    braidlog: str


class PruneReport(msgspec.Struct, frozen=True):
    removed: list[str]
    freed: int


def _row(manifest: Manifest) -> BackupRow:
    created = moment(manifest.created_ms)
    return BackupRow(
        manifest.backup, created, len(manifest.files), manifest.size, manifest.added_bytes, manifest.braidlog
    )


@click.command(epilog="Example: braid backup create /backups/node-1")
@FOLDER
@STORE_FILE
@click.option(
    "--data", type=click.Path(readable=False), help="Back up this data folder of a stopped node, without a server."
)
@click.option("--full", is_flag=True, help="Read everything, and repair damaged pieces of earlier backups.")
@TEXT_OR_JSON
@with_node
def create(
    node: Node, folder: str, properties: Mapping[str, str], data: str | None, output: str, *, full: bool
) -> None:
    """Back up a node into FOLDER, or into an object store (s3://BUCKET/PREFIX, gs://…, abfss://…).

    FOLDER is created if it does not exist. Data of earlier backups in it is not copied again. The node keeps serving: it
    takes a snapshot of its data folder within milliseconds, and this command copies the files. Run it on the machine
    of the node, as the node's user. An interrupted run leaves no backup; the next run reuses the copied files. Nodes of
    a cluster are refused.
    """
    disk = OsDisk()
    store = open_store(disk, folder, properties)
    with (
        _running(disk, node) if data is None else _stopped(disk, data) as (cut, files),
        progress("back up", sum(each.size for each in files)) as advance,
    ):
        now_ms = SystemClock().now_ms()
        manifest = create_backup(
            disk, store, cut, files, version=__version__, now_ms=now_ms, full=full, progress=advance
        )
    if output == "json":
        print_json(_row(manifest))
        return
    click.echo(
        f"backed up {plural(len(manifest.files), 'file')}, {size(manifest.size)}, as {manifest.backup}; "
        f"{size(manifest.added_bytes)} were new"
    )
    hint(f"braid backup verify {folder}")


@contextmanager
def _running(disk: Disk, node: Node) -> Iterator[tuple[str, list[SnapshotFile]]]:
    with node.connect() as client:
        cut = client.admin.create_snapshot()
        try:
            yield cut, read_listing(disk, cut)
        finally:
            client.admin.drop_snapshot()


@contextmanager
def _stopped(disk: Disk, data: str) -> Iterator[tuple[str, list[SnapshotFile]]]:
    folder = DataFolder(disk, data, SystemClock(), create=False)  # holds the folder's lock until it is closed
    try:
        if folder.identity.cluster:
            words = f"{data} belongs to cluster {folder.identity.cluster}: its metadata is in etcd, not in the folder"
            raise BrokerError(Reason.INVALID_SETTING, words)
        make_room(disk, data)
        cutting = SnapshotBuilder(disk, data, folder.pool)
        cutting.take_topics()
        cutting.take_keys("kv")
        yield write_listing(disk, data, cutting.files), cutting.files
    finally:
        drop_snapshot(disk, data)
        folder.release()


@click.command("list", epilog="Example: braid backup list /backups/node-1")
@FOLDER
@STORE_FILE
@LISTING
def list_(folder: str, properties: Mapping[str, str], output: str) -> None:
    """List the backups in FOLDER, oldest first, with time, size and added bytes."""
    store = open_store(OsDisk(), folder, properties)
    head = ["BACKUP", "CREATED", "FILES", "BYTES", "ADDED", "VERSION"]
    empty = (f"{folder} holds no complete backup.",)
    print_listing(
        store.ids(),
        output,
        lambda names: [_row(store.read_manifest(name)) for name in names],
        head,
        empty,
        f"braid backup verify {folder}",
    )


@click.command(epilog="Example: braid backup verify /backups/node-1")
@FOLDER
@STORE_FILE
@click.argument("name", metavar="[BACKUP]", required=False)
@OUTPUT
def verify(folder: str, properties: Mapping[str, str], name: str | None, output: str) -> None:
    """Verify every byte of the newest backup in FOLDER, or of the named backup.

    Exits with 1 if the backup is damaged; `braid backup create --full` then creates a complete one.
    """
    store = open_store(OsDisk(), folder, properties)
    manifest = store.load(name)
    with progress("verify", manifest.size) as advance:
        report = verify_backup(store, manifest, advance)
    if output == "json":
        print_json(report)
    elif report.sound:
        click.echo(f"{report.backup} is intact: {plural(report.files, 'file')}, {size(report.size)} read.")
    else:
        for fault in report.faults:
            click.echo(f"{fault.path}: {fault.why}")
        click.echo(f"{report.backup} is damaged: {plural(len(report.faults), 'file')} cannot be restored.")
    if not report.sound:
        end(NO)


@click.command(epilog="Example: braid backup prune /backups/node-1 --keep 7 --yes")
@FOLDER
@STORE_FILE
@click.option("--keep", type=click.IntRange(min=1), required=True, help="Number of newest backups to keep.")
@YES
@TEXT_OR_JSON
def prune(folder: str, properties: Mapping[str, str], keep: int, output: str, *, yes: bool) -> None:
    """Remove all but the newest backups in FOLDER, and the data that only they use."""
    store = open_store(OsDisk(), folder, properties)
    goes = max(0, len(store.ids()) - keep)
    if goes:
        confirm(f"Remove {plural(goes, 'backup')} of {len(store.ids())} in {folder}?", yes=yes)
    with store.writing():
        removed, freed = store.prune(keep)
    if output == "json":
        print_json(PruneReport(removed, freed))
    else:
        click.echo(f"removed {plural(len(removed), 'backup')}, freed {size(freed)}")
