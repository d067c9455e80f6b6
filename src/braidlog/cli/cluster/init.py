"""`braid cluster init`: a single node becomes the first of a cluster.

Knows: flags, and what to say afterwards. Refuses to know: how it is done (`server/etcd/moving.py`).
"""

import asyncio

import click

from braidlog.cli.node.serve import load_settings, settings_options
from braidlog.model.clock import SystemClock
from braidlog.server.etcd.moving import move_folder
from braidlog.storage.files import OsDisk, join
from braidlog.storage.folder import DataFolder
from braidlog.tools.keyvalue.inspect import STORE_FOLDER, node_of, verify_store


@click.command(epilog="Example: braid cluster init -c braidlog.toml --set cluster.etcd=http://10.0.0.5:2379")
@settings_options
def init(config: str | None, data_dir: str | None, changes: tuple[str, ...]) -> None:
    """Move what a stopped node knows of topics, users and rules into etcd: it is the first node of a cluster then.

    Takes the settings that the node runs with, and [cluster] etcd. Groups, committed offsets, transactions, sinks and named
    producers come along, and get replicas as nodes join. Records stay where they are, on this node alone, until partitions are
    moved to others; keys stay here too, until `braid kv move` puts them into slots. From the first moment on the folder starts
    with that cluster only; if this command fails or is killed, run it again. A folder without topics needs none of this: started
    with [cluster] etcd it joins or begins one.

    Embedded members of etcd on several machines need a majority: start the other nodes first, with cluster.join = true, so that
    they wait for this one's cluster instead of beginning one.
    """
    settings = load_settings(config, data_dir, changes, {}).config
    folder = DataFolder(OsDisk(), settings.data_dir, SystemClock())
    try:
        moved = asyncio.run(move_folder(folder, settings.node, settings.cluster))
        keys = _keys_in(folder)
    finally:
        folder.release()
    click.echo(f"{settings.data_dir} is node {settings.node} of cluster {moved.cluster}, whose metadata is in etcd")
    click.echo(
        "Start it with the same [cluster] settings; other nodes join by starting with them and an empty data_dir."
    )
    if keys:
        click.echo(
            f"Its {keys} keys are kept by this node alone, as before. To put them into slots on several nodes:\n"
            f"  braid kv move {settings.data_dir} --prepare"
        )


def _keys_in(folder: DataFolder) -> int:
    """0 if it holds no store of keys; of one that is damaged, those that can be read."""
    if not folder.disk.exists(join(folder.path, STORE_FOLDER)):
        return 0
    return verify_store(folder.disk, folder.path, node_of(folder.disk, folder.path)).keys
