"""Tests of clients may be coroutines."""

import inspect
from functools import partial

import pytest
from tests.client.dialects import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own, within the time that `run` gives it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run(partial(pyfuncitem.obj, **arguments))
    return True
