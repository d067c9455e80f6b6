"""Tests of partitions in a server may be coroutines: each runs in a loop of its own, within the time that `play` gives it."""

import pytest
from tests.coroutines import run_if_coroutine
from tests.server.test_node import play


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_if_coroutine(pyfuncitem, play)
