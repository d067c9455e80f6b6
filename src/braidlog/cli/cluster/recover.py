"""`braid cluster recover`: rebuilds the cluster's metadata after etcd was lost or restored."""

import asyncio

import click

from braidlog.cli.node.serve import load_settings, settings_options
from braidlog.cli.terminal.arguments import YES, confirm
from braidlog.model.clock import SystemClock
from braidlog.server.etcd.disaster_recovery import recover_folders


@click.command(epilog="Example: braid cluster recover -c braidlog.toml /nodes/1/data /nodes/2/data /nodes/3/data --yes")
@settings_options
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--lost", multiple=True, type=int, metavar="NODE", help="A node whose folder is lost.")
@YES
def recover(
    config: str | None,
    data_dir: str | None,
    changes: tuple[str, ...],
    folders: tuple[str, ...],
    lost: tuple[int, ...],
    *,
    yes: bool,
) -> None:
    """Rebuild the metadata from etcd and from FOLDERS, the data folders of all nodes, which must be stopped.

    For an etcd that was lost, or restored from a snapshot older than the nodes' own state, which nodes refuse. Uses
    [cluster] etcd and prefix of the nodes' settings. The cluster gets a new id, and epochs and producer ids above all
    that any node has seen. The replica with the latest record of each partition becomes leader. Topics that etcd lacks
    are found in the folders. Users, rules and quotas are those in etcd.

    Pass every folder: records that exist only in a missing folder are lost. If the command fails or is killed, run it
    again.
    """
    settings = load_settings(config, data_dir, changes, {}).config
    confirm("Replace the metadata in etcd? Back etcd up first (etcdctl snapshot save).", yes=yes)
    reached = asyncio.run(recover_folders(folders, settings.cluster, SystemClock(), lost))
    click.echo(
        f"cluster {reached.cluster} is recovered at entry {reached.seq}; start all nodes with their previous settings"
    )
