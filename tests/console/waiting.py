"""Waiting on conditions, with a deadline."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS_MAX = 60
_pause = threading.Event()


def until(look: Callable[[], T | None], seconds: float = SECONDS_MAX) -> T:
    """What `look` gives, once that is something; the last of its AssertionErrors after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not in {seconds} s: {found!r}"
        _pause.wait(0.05)
