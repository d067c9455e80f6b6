"""Kafka's settings of a topic as ours, and back."""

import pytest
from tests.refusals import refused_with

from braidlog.adapters.kafka.administration.config_table import ROWS, parse
from braidlog.model.errors import Reason
from braidlog.model.settings import UNLIMITED, TopicSettings

FOREVER = str(2**63 - 1)


@pytest.mark.parametrize(
    ("name", "text", "ours", "value", "shown"),
    [
        ("min.compaction.lag.ms", "5", "compaction_lag_min_ms", 5, "5"),
        ("max.compaction.lag.ms", "5", "compaction_lag_max_ms", 5, "5"),
        ("max.compaction.lag.ms", FOREVER, "compaction_lag_max_ms", UNLIMITED, FOREVER),
        ("min.cleanable.dirty.ratio", "0.25", "compaction_dirty_ratio", 0.25, "0.25"),
        ("min.cleanable.dirty.ratio", "1", "compaction_dirty_ratio", 1.0, "1.0"),
        ("message.timestamp.after.max.ms", FOREVER, "timestamp_after_max_ms", UNLIMITED, FOREVER),
    ],
)
def test_what_is_obeyed_is_a_setting_of_ours(name: str, text: str, ours: str, value: float, shown: str) -> None:
    changes, resets = parse([(name, text)])
    assert (changes, resets) == ({ours: value}, [])
    settings = TopicSettings().altered(changes)
    assert ROWS[name].show({ours: getattr(settings, ours)}) == shown
    assert parse([(name, None)]) == ({}, [ours])


def test_the_defaults_are_kafkas() -> None:
    defaults = TopicSettings()
    names = {"min.compaction.lag.ms": "0", "max.compaction.lag.ms": FOREVER, "min.cleanable.dirty.ratio": "0.5"}
    shown = {name: ROWS[name].show({ROWS[name].ours[0]: getattr(defaults, ROWS[name].ours[0])}) for name in names}
    assert shown == names


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([("min.compaction.lag.ms", "-1")], "must be 0 to"),
        ([("min.compaction.lag.ms", "x")], "a whole number"),
        ([("max.compaction.lag.ms", "0")], "1 or more"),
        ([("max.compaction.lag.ms", "-1")], "1 or more"),
        ([("min.cleanable.dirty.ratio", "1.5")], "must be 0.0 to 1.0"),
        ([("min.cleanable.dirty.ratio", "half")], "a number of 0 to 1"),
        ([("min.compaction.lag.ms", "6"), ("max.compaction.lag.ms", "5")], "lower the first"),
        ([("unclean.leader.election.enable", "true")], "never elected automatically"),
        ([("remote.storage.enable", "true")], "only on local disks"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(pairs: list[tuple[str, str]], words: str) -> None:
    with refused_with(Reason.INVALID_SETTING, match=words):
        TopicSettings().altered(parse(pairs)[0])


def test_a_fixed_setting_is_set_to_what_it_is() -> None:
    assert parse([("unclean.leader.election.enable", "FALSE"), ("remote.storage.enable", "false")]) == ({}, [])
