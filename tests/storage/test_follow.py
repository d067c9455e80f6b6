"""A record that arrives between the end of a read and the wait for more is not slept over."""

from typing import Any

import pytest

from braidlog import Log
from braidlog.storage.embedded_log import Topic
from braidlog.storage.log.partition_log import FileSlice
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk


def test_follow_sees_what_arrives_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with Log("/data", disk=SimulatedDisk(), clock=ManualClock()) as log:
        topic = log.create_topic("a")
        topic.append(b"first")
        next_slice = Topic._next_slice

        def slice_then_append(self: Topic, *args: Any, **options: Any) -> FileSlice | None:
            found = next_slice(self, *args, **options)
            if found is None and self.end_offset() == 1:
                self.append(b"second")
            return found

        monkeypatch.setattr(Topic, "_next_slice", slice_then_append)
        assert [record.value for record in topic.follow(timeout=0.05)] == [b"first", b"second"]
