"""When a partition is compacted, as its topic's settings say."""

import pytest
from tests.broker.node import Node

from braidlog.codec.batch.records import encode_batch

LAG_MS = 60_000


def compacted(node: Node, topic: str) -> int:
    """What upkeep leaves compacted, from the start on."""
    hosted = node.services.hosting.partition(topic, 0)
    node.services.hosting.maintain_log(hosted, node.clock.now_ms())
    return hosted.log.state.cleaned_offset


@pytest.mark.parametrize("lag_ms", [LAG_MS, -1])
def test_a_record_is_compacted_after_its_longest_lag_even_where_nobody_writes(lag_ms: int) -> None:
    node = Node()
    settings = {"compact": True, "compaction_lag_max_ms": lag_ms}
    node.run(node.services.topics.create("t", 1, settings=settings))
    now_ms = node.clock.now_ms()
    batch = encode_batch([b"1", b"2"], keys=[b"k", b"k"], base_timestamp=now_ms)
    node.run(node.services.append.append("t", 0, batch))
    node.runtime.advance(LAG_MS)
    assert compacted(node, "t") == 0
    node.runtime.advance(1)
    assert compacted(node, "t") == (0 if lag_ms < 0 else 2)
