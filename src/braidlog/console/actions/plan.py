"""What an action is: a plan in words, which somebody says yes to, and then the deed.

Knows: the shape of a plan. Refuses to know: HTTP, any action.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from braidlog.console.form_fields import Fields
from braidlog.console.listener_clients import Clients


class Plan(NamedTuple):
    """`words`: what will happen, by name. `done`: what is said when it has. `then`: the page to go on to; empty: this one."""

    words: str
    run: Callable[[], Awaitable[object]]
    done: str
    then: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    """A table beside the words: what changes where, as far as it is known now. What moves by itself stands here, and not in the
    words, which are said yes to."""
    is_harmful: bool = False
    """Whether something is lost by it."""


Planner = Callable[[Fields, Clients], Awaitable[Plan]]
"""plan(the form's fields, the clients of who asks) → what would be done. It changes nothing."""


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
