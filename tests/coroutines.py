"""Tests that are coroutines: a folder's conftest.py says how they run."""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial

import pytest


def run_if_coroutine(item: pytest.Function, run: Callable[[Callable[[], Awaitable[None]]], None]) -> bool | None:
    """Run a test that is a coroutine; leave every other to pytest. For `pytest_pyfunc_call`."""
    if not inspect.iscoroutinefunction(item.obj):
        return None
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    run(partial(item.obj, **arguments))
    return True
