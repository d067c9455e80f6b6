"""What many partitions cost: files while they are used, bytes while they are not. `benchmarks/partitions.py` measures more."""

import asyncio
import gc
import os
import tracemalloc
from pathlib import Path

import pytest
from tests.server.test_node import config_for

from braidlog.codec.batch.records import encode_batch
from braidlog.partition.closing import close_idle
from braidlog.partition.produce.append import Acks
from braidlog.server import node
from braidlog.server.node import Server

PARTITIONS = 300
DESCRIPTORS = 128
BYTES_MAX = 4096


def open_below(folder: Path) -> int:
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink() and each.exists()]
    return sum(link.startswith(str(folder)) for link in links)


async def traced_bytes(folder: Path) -> int:
    """What a node keeps in memory from its start on."""
    gc.collect()
    tracemalloc.start()
    try:
        server = Server(config_for(folder))
        await server.start()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        assert server.services is not None
        assert not any(hosted.is_open for hosted in server.services.hosting.opened("many"))
        await server.stop()
    finally:
        tracemalloc.stop()
    return size


def test_files_while_they_are_used_and_bytes_while_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "raise_limit", lambda: DESCRIPTORS)
    for sync in ("fsync", "fdatasync"):  # nothing crashes here, and thousands of syncs take long
        monkeypatch.setattr(os, sync, lambda _: None)

    async def scene() -> None:
        without = await traced_bytes(tmp_path / "without")
        server = Server(config_for(tmp_path / "with"))
        await server.start()
        assert server.services is not None
        await server.services.topics.create("many", PARTITIONS)
        assert open_below(tmp_path) < DESCRIPTORS // 3
        batch = encode_batch([b"x"], base_timestamp=1)
        for number in range(PARTITIONS):
            await server.services.append.append("many", number, batch, acks=Acks.ALL)
        assert open_below(tmp_path) < DESCRIPTORS // 3
        for _ in range(2):
            await close_idle(server.services.hosting, server.services.runtime)
        await server.stop()
        assert open_below(tmp_path) == 0
        assert (await traced_bytes(tmp_path / "with") - without) / PARTITIONS < BYTES_MAX

    asyncio.run(scene())
