"""Logs that differ are told apart, wherever they differ."""

from pathlib import Path

import pytest
from tests.nemesis.replicas import different_logs

from braidlog.storage.embedded_log import Log
from braidlog.testing.clock import ManualClock

SAME = [b"%0100d" % number for number in range(50)]


def folders(path: Path, *logs: list[bytes]) -> dict[int, Path]:
    """Nodes 1, 2, …, each with a topic of several segments."""
    found = {}
    for number, values in enumerate(logs, start=1):
        found[number] = path / str(number)
        with Log(str(found[number]), clock=ManualClock()) as log:
            topic = log.create_topic("t", segment_bytes=4096)
            for value in values:
                topic.append(value)
    return found


def test_equal_logs_are_equal(tmp_path: Path) -> None:
    assert different_logs(folders(tmp_path, SAME, SAME, SAME), ["t"]) == []


@pytest.mark.parametrize(
    ("other", "batch"),
    [(SAME[:-1], 49), ([*SAME[:7], b"x", *SAME[8:]], 7), ([*SAME, b"more"], 50), (SAME[1:], 0), ([], 0)],
)
def test_a_replica_that_differs_is_told(tmp_path: Path, other: list[bytes], batch: int) -> None:
    (told,) = different_logs(folders(tmp_path, SAME, SAME, other), ["t"])
    assert told.startswith(f"t: batch {batch} is ")
    assert "on node 3" in told


def test_a_topic_that_is_nowhere_is_told(tmp_path: Path) -> None:
    assert different_logs(folders(tmp_path, SAME, SAME), ["u"]) == ["u is not on node 1"]
