"""`braid completion`: prints a completion script, which looks commands up when Tab is pressed."""

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
    """Print the completion script for SHELL."""
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    made = found(root, {}, "braid", "_BRAID_COMPLETE")
    # Not by source(): it starts a bash to check its version; every bash of the last ten years is new enough.
    click.echo(made.source_template % made.source_vars())
    hint(_HOW[shell])
