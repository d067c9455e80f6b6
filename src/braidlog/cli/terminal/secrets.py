"""Secrets are not typed: other users of a machine can see every command line that runs.

Knows: which of what was typed holds one. Refuses to know: what it opens. A URL in the environment or in a file may hold one.
"""

from urllib.parse import urlsplit

import click
from click.core import ParameterSource

SETTINGS = ("cluster.password", "cluster.token", "tables.catalog")
"""Of a node: those that hold secrets themselves, not hashes of them."""


def not_typed(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A callback for options that take a URL."""
    was_typed = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    if value is not None and was_typed and urlsplit(value).password:
        environment = f", or the URL in {param.envvar}" if isinstance(param.envvar, str) else ""
        raise click.BadParameter(
            f"it holds a secret, which everybody on this machine can see: pass --token-file{environment}", ctx, param
        )
    return value


def refuse_typed_settings(names: list[str]) -> None:
    """Of `--set`."""
    for name in names:
        if name.lower().startswith(SETTINGS):
            variable = f"BRAID_{name.upper().replace('.', '__')}"
            seen = f"--set {name} holds a secret, which everybody on this machine can see"
            raise click.UsageError(f"{seen}: put it into the settings file or {variable}")
