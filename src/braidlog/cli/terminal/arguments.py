"""What several commands take: options in common, NAME=VALUE, and a yes before what cannot be taken back."""

import sys
from collections.abc import Callable, Iterable

import click

YES = click.option("--yes", is_flag=True, help="Do not ask.")


Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def together(*options: Decorator) -> Decorator:
    """Several options and arguments as one decorator; the first of them stands first in the help."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE as it was typed."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} takes NAME=VALUE, not {word!r}")
        found[name] = value
    return found


def answered(question: str) -> bool:
    """Yes or no, of a person or from a pipe; a pipe that says nothing has to say --yes."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("not a terminal: pass --yes to confirm") from None


def confirm(question: str, *, yes: bool) -> None:
    """Ask a person; whoever is none has to say --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("not a terminal: pass --yes to confirm")
    click.confirm(question, abort=True, err=True)
