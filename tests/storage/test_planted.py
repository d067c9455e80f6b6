"""Each bug that is planted in `storage/` is found by its test, and that test finds nothing without it."""

import pytest
from tests.storage.planted import BUGS, planted

from braidlog.model.errors import BrokerError


@pytest.mark.parametrize("number", BUGS)
def test_a_planted_bug_is_found(number: int) -> None:
    bug = BUGS[number]
    bug.killer()
    with planted(bug), pytest.raises((AssertionError, BrokerError)):
        bug.killer()
