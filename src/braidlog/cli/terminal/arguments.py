"""NAME=VALUE arguments, and confirmation of irreversible changes."""

import sys
from collections.abc import Callable, Iterable

import click

YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def together(*options: Decorator) -> Decorator:
    """Several options and arguments as one decorator; the first of them stands first in the help."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """Parse NAME=VALUE arguments."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} takes NAME=VALUE, not {word!r}")
        found[name] = value
    return found


def answered(question: str) -> bool:
    """Read yes or no from a terminal or a pipe; without an answer --yes is required."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("not a terminal: pass --yes to confirm") from None


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; elsewhere --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("not a terminal: pass --yes to confirm")
    click.confirm(question, abort=True, err=True)
