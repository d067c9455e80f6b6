"""Refuse secrets on the command line, which other users of the machine can see; the environment and files may hold them."""

from urllib.parse import urlsplit

import click
from click.core import ParameterSource

SETTINGS = ("cluster.password", "cluster.token", "tables.catalog")
"""Settings of a node that hold secrets, not hashes of them."""


def not_typed(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Option callback that refuses a URL with a secret on the command line."""
    was_typed = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    if value is not None and was_typed and urlsplit(value).password:
        environment = f", or the URL in {param.envvar}" if isinstance(param.envvar, str) else ""
        raise click.BadParameter(
            f"it contains a secret, which other users of this machine can see: pass --token-file{environment}",
            ctx,
            param,
        )
    return value


def refuse_typed_settings(names: list[str]) -> None:
    """Refuse secrets in `--set`."""
    for name in names:
        if name.lower().startswith(SETTINGS):
            variable = f"BRAID_{name.upper().replace('.', '__')}"
            seen = f"--set {name} contains a secret, which other users of this machine can see"
            raise click.UsageError(f"{seen}: set it in the settings file or {variable}")
