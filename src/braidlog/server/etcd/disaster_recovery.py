"""`braid cluster recover`: lets the folders of stopped nodes continue with an etcd that lost some or all metadata.

The steps are in `cluster/etcd/disaster_recovery.py`.
"""

import uuid
from collections.abc import Collection, Sequence
from contextlib import ExitStack

from braidlog.cluster.etcd.disaster_recovery import recover
from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.port import EtcdError
from braidlog.cluster.etcd.position import Position
from braidlog.model.clock import Clock
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.etcd_metadata import retry_until_answered
from braidlog.server.etcd.gateway import Gateway
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder


async def recover_folders(paths: Sequence[str], config: ClusterConfig, clock: Clock, lost: Collection[int]) -> Position:
    """Recover the folders, which stay locked during the recovery. After a failure, call this again to finish."""
    if not config.etcd or config.is_embedded:
        raise BrokerError(
            Reason.INVALID_SETTING,
            "name a running etcd by its URLs in cluster.etcd: embedded members run only with their nodes, so recover "
            "with a "
            "separate etcd, and restore its snapshot to them (docs/guides/cluster.md, Backups)",
        )
    gateway = Gateway(config.gateway(), config.tls())
    with ExitStack() as stack:
        stack.callback(gateway.close)
        folders = []
        for path in paths:
            folders.append(DataFolder(OsDisk(), path, clock, create=False))
            stack.callback(folders[-1].release)
        try:
            await retry_until_answered(gateway.check_versions)
            keys = Keys(config.prefix)
            return await recover(gateway, keys, folders, new_cluster=uuid.uuid4().hex, now_ms=clock.now_ms(), lost=lost)
        except EtcdError as error:
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"recovery not finished, metadata cannot be written to etcd: {error}; try again",
            ) from error
