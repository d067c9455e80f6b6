"""The plan of an action: a description that the user confirms, and the function that executes it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from braidlog.console.form_fields import Fields
from braidlog.console.listener_clients import Clients


class Plan(NamedTuple):
    """`words`: description of the change. `done`: message afterwards. `then`: the next page; empty: the same page."""

    words: str
    run: Callable[[], Awaitable[object]]
    done: str
    then: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    """Table with details, as far as they are known. Values that change on their own belong here, not in the confirmed words."""
    is_harmful: bool = False
    """Whether the action loses data."""


Planner = Callable[[Fields, Clients], Awaitable[Plan]]
"""plan(form fields, clients of the user) → plan. Changes nothing."""


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
