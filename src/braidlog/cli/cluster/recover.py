"""`braid cluster recover`: nodes go on after their etcd was lost or set back.

Knows: flags, and what to say afterwards. Refuses to know: how it is done (`server/etcd/disaster_recovery.py`).
"""

import asyncio

import click

from braidlog.cli.node.serve import load_settings, settings_options
from braidlog.cli.terminal.arguments import YES, confirm
from braidlog.model.clock import SystemClock
from braidlog.server.etcd.disaster_recovery import recover_folders


@click.command(epilog="Example: braid cluster recover -c braidlog.toml /nodes/1/data /nodes/2/data /nodes/3/data --yes")
@settings_options
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--lost", multiple=True, type=int, metavar="NODE", help="A node whose folder is gone for good.")
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
    """Begin the metadata anew from what etcd still has and from FOLDERS, the data folders of all nodes, which are stopped.

    For an etcd that was lost, or restored from a copy older than what the nodes have applied, which they refuse. Takes [cluster]
    etcd and prefix of the nodes' settings. The cluster gets a new id, and epochs and producer ids above all that any node has
    seen; of each partition the copy with the latest record leads, and the others follow it. Topics that etcd has forgotten are
    found in the folders. Users, rules and quotas are those that etcd has.

    Every folder counts: what only one that is left out has is lost. If this command fails or is killed, run it again.
    """
    settings = load_settings(config, data_dir, changes, {}).config
    confirm("Replace the metadata in etcd? Make a copy of it first (etcdctl snapshot save).", yes=yes)
    reached = asyncio.run(recover_folders(folders, settings.cluster, SystemClock(), lost))
    click.echo(f"cluster {reached.cluster} goes on at entry {reached.seq}; start all nodes with the settings they had")
