"""`braid completion`: what a shell needs to complete these commands.

Knows: the shells that click knows. Refuses to know: the commands; they are looked up when Tab is pressed.
"""

import click
from click.shell_completion import get_completion_class

from braidlog.cli.terminal.output import QUIET, hint

_HOW = {
    "bash": 'eval "$(braid completion bash)"     # in ~/.bashrc',
    "zsh": 'eval "$(braid completion zsh)"      # in ~/.zshrc',
    "fish": "braid completion fish > ~/.config/fish/completions/braid.fish",
}


@click.command(epilog="\b\nExample:\n" + "\n".join(f"  {line}" for line in _HOW.values()))
@click.argument("shell", type=click.Choice(sorted(_HOW)))
@QUIET
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands and options of braid."""
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    made = found(root, {}, "braid", "_BRAID_COMPLETE")
    # Not by source(): that starts a bash to look at its version, and every bash of the last ten years will do.
    click.echo(made.source_template % made.source_vars())
    hint(_HOW[shell])
