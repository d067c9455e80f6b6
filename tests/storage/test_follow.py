"""A record that arrives between the end of a read and the wait for more is not slept over."""

from collections.abc import Iterator
from typing import Any

import pytest

from braidlog import Log, Record
from braidlog.storage.log import Topic
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk


def test_follow_sees_what_arrives_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with Log("/data", disk=SimulatedDisk(), clock=ManualClock()) as log:
        topic = log.create_topic("a")
        topic.append(b"first")
        iterate = Topic.iterate

        def iterate_then_append(self: Topic, *args: Any, **options: Any) -> Iterator[Record]:
            yield from iterate(self, *args, **options)
            if self.end_offset() == 1:
                self.append(b"second")

        monkeypatch.setattr(Topic, "iterate", iterate_then_append)
        assert [record.value for record in topic.follow(timeout=0.05)] == [b"first", b"second"]
