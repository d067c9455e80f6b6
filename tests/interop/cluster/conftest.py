"""Three nodes for each module that judges them: one expects that no group was used before."""

from collections.abc import Iterator

import pytest
from tests.interop.kafka.servers import IS_FULL
from tests.server.etcd.members import members

from braidlog.testing.cluster_process import ClusterProcess


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Start three nodes; all of them run before and after a test."""
    if not IS_FULL:
        pytest.skip("minutes: make interop-cluster")
    folder = tmp_path_factory.mktemp("cluster")
    with members(folder, 1) as (etcd,), ClusterProcess(folder / "nodes", etcd.url) as nodes:
        yield nodes
