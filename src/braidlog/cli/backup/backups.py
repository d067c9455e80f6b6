"""`braid backup create`, `list`, `verify`, `prune`.

Knows: where the cut comes from, how back-ups look. Refuses to know: how one is kept (`tools/backup/`).
"""

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
from braidlog.storage.folder.folder_snapshot import CutFile, Cutting, drop_snapshot, make_room, write_listing
from braidlog.tools.backup.copying import create_backup, read_listing
from braidlog.tools.backup.manifest import Manifest
from braidlog.tools.backup.restoring import verify_backup


class BackupRow(msgspec.Struct, frozen=True):
    """What `braid backup list` and `create` print of a back-up. `added`: the bytes that it added to the folder."""

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
    "--data", type=click.Path(readable=False), help="Of a node that is stopped: its data folder. No server is asked."
)
@click.option("--full", is_flag=True, help="Read everything, and mend damaged pieces of earlier back-ups.")
@TEXT_OR_JSON
@with_node
def create(
    node: Node, folder: str, properties: Mapping[str, str], data: str | None, output: str, *, full: bool
) -> None:
    """Back up a node into FOLDER, which is made if need be and may hold earlier back-ups: what they have is not copied again.
    It may be in an object store: s3://BUCKET/PREFIX, gs://…, abfss://….

    The node goes on serving. It is asked for a cut of its data folder, which takes some milliseconds, and this command copies the
    files: it has to run on the machine of the node, as the user the node runs as. Interrupted, it leaves no back-up, and the next
    one uses what was copied. Nodes of a cluster are refused.
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
def _running(disk: Disk, node: Node) -> Iterator[tuple[str, list[CutFile]]]:
    with node.connect() as client:
        cut = client.admin.create_snapshot()
        try:
            yield cut, read_listing(disk, cut)
        finally:
            client.admin.drop_snapshot()


@contextmanager
def _stopped(disk: Disk, data: str) -> Iterator[tuple[str, list[CutFile]]]:
    folder = DataFolder(disk, data, SystemClock(), create=False)  # its lock is held as long as this is
    try:
        if folder.identity.cluster:
            words = f"{data} follows cluster {folder.identity.cluster}: what nodes agree on is not in it, but in etcd"
            raise BrokerError(Reason.INVALID_SETTING, words)
        make_room(disk, data)
        cutting = Cutting(disk, data, folder.pool)
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
    """The back-ups in FOLDER, oldest first: when, how large, and how much each one added to those before it."""
    store = open_store(OsDisk(), folder, properties)
    head = ["BACKUP", "CREATED", "FILES", "BYTES", "ADDED", "VERSION"]
    empty = (f"{folder} holds no back-up that was finished.",)
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
    """Read every byte of the newest back-up in FOLDER, or of the one that is named, and say whether it is what was written.

    Exits with 1 if it is not; `braid backup create --full` then makes one that is whole.
    """
    store = open_store(OsDisk(), folder, properties)
    manifest = store.load(name)
    with progress("verify", manifest.size) as advance:
        report = verify_backup(store, manifest, advance)
    if output == "json":
        print_json(report)
    elif report.sound:
        click.echo(f"{report.backup} is sound: {plural(report.files, 'file')}, {size(report.size)} read.")
    else:
        for fault in report.faults:
            click.echo(f"{fault.path}: {fault.why}")
        click.echo(f"{report.backup} is not sound: {plural(len(report.faults), 'file')} cannot be restored.")
    if not report.sound:
        end(NO)


@click.command(epilog="Example: braid backup prune /backups/node-1 --keep 7 --yes")
@FOLDER
@STORE_FILE
@click.option("--keep", type=click.IntRange(min=1), required=True, help="How many of the newest stay.")
@YES
@TEXT_OR_JSON
def prune(folder: str, properties: Mapping[str, str], keep: int, output: str, *, yes: bool) -> None:
    """Remove all back-ups in FOLDER but the newest, and what only they have."""
    store = open_store(OsDisk(), folder, properties)
    goes = max(0, len(store.ids()) - keep)
    if goes:
        confirm(f"Remove {plural(goes, 'back-up')} of {len(store.ids())} in {folder}?", yes=yes)
    with store.writing():
        removed, freed = store.prune(keep)
    if output == "json":
        print_json(PruneReport(removed, freed))
    else:
        click.echo(f"removed {plural(len(removed), 'back-up')}, {size(freed)} are free")
