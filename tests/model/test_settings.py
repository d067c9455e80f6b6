"""Settings: one check for a file, a flag and a request."""

from typing import Any

import msgspec
import pytest
from tests.refusals import refused_with

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import _BOUNDS, Flush, TopicSettings, settings_from


def refusal(values: dict[str, Any]) -> str:
    with refused_with(Reason.INVALID_SETTING) as caught:
        settings_from(values)
    return str(caught.value)


@pytest.mark.parametrize(("name", "low", "high"), _BOUNDS)
def test_bounds_are_inclusive(name: str, low: float, high: float) -> None:
    for value in (low, high):
        assert getattr(settings_from({name: value}), name) == value
    for value in (low - 1, high + 1):
        assert refusal({name: value}) == f"{name} must be {low} to {high}, not {value}"
        with pytest.raises(BrokerError):
            TopicSettings(**{name: value})  # type: ignore[arg-type]


def test_every_number_has_bounds() -> None:
    numbers = {name for name, kind in TopicSettings.__annotations__.items() if kind in (int, float)}
    assert numbers == {name for name, _, _ in _BOUNDS}


def test_unknown_names_and_wrong_types_say_what_there_is() -> None:
    for values in ({"segment_size": 5}, {"segment_bytes": "big"}, {"compact": 1}, {"flush": "never"}):
        message = refusal(values)
        assert "a topic's settings are: flush, flush_interval_ms" in message
    assert "segment_size" in refusal({"segment_size": 5})
    assert "never" in refusal({"flush": "never"})


def test_altering_keeps_the_rest_and_checks_it_all() -> None:
    before = settings_from({"flush": "interval", "segment_bytes": 8192})
    after = before.altered({"segment_bytes": 4096})
    assert after == msgspec.structs.replace(before, segment_bytes=4096)
    assert after.flush is Flush.INTERVAL
    with pytest.raises(BrokerError):
        before.altered({"nonsense": 1})


def test_defaults_are_safe() -> None:
    settings = settings_from({})
    assert settings == TopicSettings()
    assert settings.flush is Flush.ACK
    assert (settings.retention_ms, settings.retention_bytes, settings.compact) == (-1, -1, False)
