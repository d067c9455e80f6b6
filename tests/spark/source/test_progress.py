"""A stream's progress in a group, and what is said when two streams share one."""

import logging

import pytest
from tests.spark.source.topics import Runtime

from braidlog.spark.source.logs import ServerLog
from braidlog.spark.source.progress import LOOK_SECONDS, Group
from braidlog.testing.clock import ManualClock

PLACE = ("plain", 0)


def test_two_queries_with_one_group_are_told_of_it(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    name, clock = runtime.name("shared"), ManualClock()
    log = ServerLog(runtime.url, committed_only=True)
    try:
        first, second = Group(log, name, clock), Group(log, name, clock)
        with caplog.at_level(logging.WARNING, "braidlog.spark"):
            first.commit({PLACE: 5})
            first.commit({PLACE: 6})
            clock.advance(int(LOOK_SECONDS * 1000))
            first.commit({PLACE: 7})
            assert not caplog.records, "one query alone has nothing to be told"
            second.commit({PLACE: 3})
            first.commit({PLACE: 8})
            assert not caplog.records, "it is not looked at every trigger"
            second.commit({PLACE: 4})
            clock.advance(int(LOOK_SECONDS * 1000))
            first.commit({PLACE: 9})
        (said,) = [record.getMessage() for record in caplog.records]
        assert said == (
            f"group {name}: another client also commits to plain/0, and its lag is meaningless; "
            "give each query its own groupId"
        )
        assert log.committed(name) == {PLACE: 9}
    finally:
        log.close()
