"""Tests of clients may be coroutines: each runs in a loop of its own, within the time that `run` gives it."""

import pytest
from tests.client.dialects import run
from tests.coroutines import run_if_coroutine


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_if_coroutine(pyfuncitem, run)
