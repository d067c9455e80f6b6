"""Wait on a condition, with a deadline."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str = "", seconds: float = 60, pause: float = 0.02) -> T:
    """What `look` gives, once that is something."""
    deadline = time.monotonic() + seconds
    between = threading.Event()
    while not (found := look()):
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what or found}"
        between.wait(pause)
    return found
