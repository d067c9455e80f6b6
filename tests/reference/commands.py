"""docs/reference/cli.md: what every command says of itself, on one page; `make reference` writes it.

Knows: how to ask each command for its help. Refuses to know: any command.
Invariant: the page holds nothing that was written by hand: it is right whenever it is made.
"""

from collections.abc import Iterator

import click

import braidlog.cli
from braidlog.cli import HELP_WIDTH_MAX, main

_HEAD = """\
# Commands

Made by `make reference` from what the commands say of themselves: `braid COMMAND --help`.

"""


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """The group, and all in it, in the order in which it lists them."""
    yield group, context
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, **command.context_settings)
        if isinstance(command, click.Group):
            yield from commands(command, inner)
        else:
            yield command, inner


def help_of(command: click.Command, context: click.Context) -> str:
    context.terminal_width = context.max_content_width = HELP_WIDTH_MAX
    return command.get_help(context).rstrip()


def exit_codes() -> str:
    """The table that stands where the codes are defined."""
    assert braidlog.cli.__doc__ is not None
    return "\n".join(line for line in braidlog.cli.__doc__.splitlines() if line.startswith("|"))


def entry(level: str, command: click.Command, context: click.Context) -> str:
    return f"{level} {context.command_path}\n\n```text\n{help_of(command, context)}\n```\n"


def page() -> str:
    """The program itself, then its commands under the sections of its help."""
    context = click.Context(main, info_name="braid", **main.context_settings)
    (program, outer), *rest = commands(main, context)
    parts = [entry("##", program, outer)]
    titles = {next(iter(named)): title for title, named in main.sections.items()}
    for command, inner in rest:
        title = titles.pop(inner.command_path.split()[1], None)
        parts += [f"## {title}\n"] if title else []
        parts.append(entry("###", command, inner))
    return f"{_HEAD}{exit_codes()}\n\n" + "\n".join(parts)


if __name__ == "__main__":
    click.echo(page(), nl=False)
