"""`braid cluster init`: a single node becomes the first of a cluster.

Knows: flags, and what to say afterwards. Refuses to know: how it is done (`server/etcd/migration.py`).
"""

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
    """Move the topics, users, rules and keys of a stopped node into a cluster, whose first node it becomes.

    Takes the settings that the node runs with, and [cluster] etcd. Groups, committed offsets, transactions, sinks, named
    producers and keys come along, and get replicas as nodes join. The change feed of keys begins again, with each key once.
    Records stay where they are, on this node alone, until partitions are moved to others. From the first moment on the folder
    starts with that cluster only; if this command fails or is killed, run it again. A folder without topics needs none of this:
    started with [cluster] etcd it joins or begins one.

    Embedded members of etcd on several machines need a majority: start the other nodes first, with cluster.join = true, so that
    they wait for this one's cluster instead of beginning one.
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
        click.echo(f"{moved.keys} keys were moved into the {SLOTS} slots of the cluster")
    click.echo(
        "Start it with the same [cluster] settings; other nodes join by starting with them and an empty data_dir."
    )


def _progress(clock: Clock) -> Callable[[int], None]:
    """Print how many keys are written, every few seconds."""
    shown_at = clock.monotonic()

    def report(keys: int) -> None:
        nonlocal shown_at
        if keys % KEYS_AT_ONCE == 0 and clock.monotonic() - shown_at > PROGRESS_SECONDS:
            shown_at = clock.monotonic()
            click.echo(f"{keys} keys written", err=True)

    return report
