"""Calls that must be refused, and why."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from braidlog.model.errors import BrokerError, Reason


@contextmanager
def refused_with(reason: Reason, match: str | None = None) -> Iterator[pytest.ExceptionInfo[BrokerError]]:
    """The block ends with a `BrokerError` of this reason, whose words match."""
    with pytest.raises(BrokerError, match=match) as caught:
        yield caught
    assert caught.value.reason is reason, f"{caught.value.reason}: {caught.value}"


def reason_of(call: Callable[..., object], *args: object, **more: object) -> Reason:
    """Why the call is refused."""
    with pytest.raises(BrokerError) as caught:
        call(*args, **more)
    return caught.value.reason
