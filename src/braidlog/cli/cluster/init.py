"""`braid cluster init`: turns a single node into the first node of a cluster."""

import asyncio
from collections.abc import Callable
from typing import Final

import click

from braidlog.cli.node.serve import load_settings, settings_options
from braidlog.kv.replicated.slots import SLOTS
from braidlog.model.clock import Clock, SystemClock
from braidlog.server.etcd.migration import move_folder
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder

KEYS_AT_ONCE: Final = 1_000
PROGRESS_SECONDS: Final = 2.0


@click.command(epilog="Example: braid cluster init -c braidlog.toml --set cluster.etcd=http://10.0.0.5:2379")
@settings_options
def init(config: str | None, data_dir: str | None, changes: tuple[str, ...]) -> None:
    """Turn a stopped single node into the first node of a cluster.

    Pass the settings that the node runs with, and [cluster] etcd. Topics, users, rules, groups, committed offsets,
    transactions, sinks, named producers and keys move into the cluster, and get replicas as nodes join. The change feed
    of keys restarts with each key once. Records stay on this node until you reassign partitions. As soon as the command
    has begun, the folder starts only with that cluster; if the command fails or is killed, run it again. A folder
    without topics does not need this command: a node started with [cluster] etcd joins or creates a cluster.

    Embedded members of etcd on several machines need a majority: start the other nodes first, with cluster.join = true,
    so that they wait for this node's cluster instead of creating one.
    """
    settings = load_settings(config, data_dir, changes, {}).config
    folder = DataFolder(OsDisk(), settings.data_dir, SystemClock())
    try:
        work = move_folder(folder, settings.node, settings.cluster, settings.kv, _progress(SystemClock()))
        moved = asyncio.run(work)
    finally:
        folder.release()
    click.echo(f"{settings.data_dir} is node {settings.node} of cluster {moved.cluster}, whose metadata is in etcd")
    if moved.keys:
        click.echo(f"moved {moved.keys} keys into the {SLOTS} slots of the cluster")
    click.echo(
        "Start it with the same [cluster] settings. Other nodes join with the same settings and an empty data_dir."
    )


def _progress(clock: Clock) -> Callable[[int], None]:
    """Return a callback that prints the number of written keys every few seconds."""
    shown_at = clock.monotonic()

    def report(keys: int) -> None:
        nonlocal shown_at
        if keys % KEYS_AT_ONCE == 0 and clock.monotonic() - shown_at > PROGRESS_SECONDS:
            shown_at = clock.monotonic()
            click.echo(f"{keys} keys written", err=True)

    return report
