"""`braid cluster init`: moves a stopped node's folder, with its topics, users, rules, groups and keys, into a new
cluster in etcd.

The steps are in `cluster/etcd/migration.py`; a move may be interrupted after any of them.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from braidlog.cluster.etcd import image_snapshots
from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.migration import is_moving, move_into_etcd
from braidlog.cluster.etcd.port import EtcdError
from braidlog.cluster.etcd.position import PositionFile
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.internal.internal_topic import open_metadata
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.etcd_metadata import MEMBER_FOLDER, retry_until_answered
from braidlog.server.etcd.etcd_process import Member, find_program
from braidlog.server.etcd.gateway import Gateway
from braidlog.server.etcd.key_migration import KeyMigration
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.group_commit import Flusher


class Moved(NamedTuple):
    """The cluster that the folder created, and the number of keys it brought."""

    cluster: str
    keys: int


async def move_folder(
    folder: DataFolder,
    node: str,
    config: ClusterConfig,
    kv: KeyValueSettings,
    report: Callable[[int], None] = lambda _: None,
) -> Moved:
    """Move a folder that no process serves. After a failure, call this again to finish.

    `report` is called with the number of keys written so far.
    """
    if not config.etcd:
        raise BrokerError(Reason.INVALID_SETTING, "a cluster needs etcd for its metadata: set [cluster] etcd")
    clock = SystemClock()
    flusher = Flusher(clock)
    runtime = EventLoopRuntime(clock, flusher)
    store = open_metadata(folder, runtime, node=node)
    member = None
    tls = config.tls()
    gateway = Gateway(config.gateway(), tls)
    keys_of_node = KeyMigration(folder, runtime, node, kv, report)
    try:
        image, _ = store.load()
        position = PositionFile(folder.disk, folder.path, node).load()
        if position is not None and not is_moving(position):
            keys_of_node.finish()  # the attempt that moved the folder was killed before this step
        keys_of_node.prepare(image)
        if config.is_embedded:
            member = Member(config.member(node), Path(folder.path) / MEMBER_FOLDER, find_program(), tls)
            await member.start()
        await retry_until_answered(gateway.check_versions)
        keys = Keys(config.prefix)
        await retry_until_answered(
            lambda: image_snapshots.read_head(gateway, keys)
        )  # proves that a majority of the members is running
        new_cluster = uuid.uuid4().hex
        moved = await move_into_etcd(
            gateway,
            keys,
            folder,
            image,
            node=node,
            new_cluster=new_cluster,
            bring=keys_of_node.write,
        )
        keys_of_node.finish()
        return Moved(moved.cluster, keys_of_node.keys)
    except EtcdError as error:
        raise BrokerError(
            Reason.UNAVAILABLE,
            f"move not finished, metadata cannot be written to etcd: {error}; try again",
        ) from error
    finally:
        gateway.close()
        if member is not None:
            await member.stop()
        store.close()
        flusher.stop()
