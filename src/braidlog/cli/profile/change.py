"""`braid profile create`, `use`, `list`, `delete`."""

from pathlib import Path
from typing import Any

import click

from braidlog.cli import REFUSED, end
from braidlog.cli.terminal.arguments import pairs
from braidlog.cli.terminal.output import QUIET, hint, print_table
from braidlog.cli.terminal.profiles import ProfileError, Profiles, has_secret, read_profiles, write_profiles

_FILE = click.Path(exists=True, dir_okay=False)
_NAME = click.argument("name")


def _read() -> Profiles:
    try:
        return read_profiles()
    except ProfileError as error:
        end(REFUSED, str(error))


def _write(profiles: Profiles) -> None:
    try:
        write_profiles(profiles)
    except ProfileError as error:
        end(REFUSED, str(error))


def _known(profiles: Profiles, name: str) -> None:
    if name not in profiles.profiles:
        end(REFUSED, f"unknown profile {name!r}; see `braid profile list`")


@click.command(
    epilog="Example: braid profile create shop --server kafka://n1:9092 --principal ann --token-file ann.token"
)
@_NAME
@click.option("--server", required=True, metavar="URL", help="URL of any listener of a node, without a token.")
@click.option("--principal", metavar="NAME", help="User to authenticate as.")
@click.option("--token-file", type=_FILE, help="File with the token or password; only the path is stored.")
@click.option("--ca", type=_FILE, help="CA certificate file; enables TLS.")
@click.option("--cert", type=_FILE, help="Client certificate file; enables TLS.")
@click.option("--cert-key", type=_FILE, help="Private key file of the client certificate.")
@click.option("-X", "options", multiple=True, metavar="NAME=VALUE", help="URL option; repeatable.")
@QUIET
def create(name: str, server: str, options: tuple[str, ...], **more: Any) -> None:  # noqa: ANN401 - the other options
    """Create or replace the profile NAME; the first profile becomes the default."""
    if has_secret(server):
        raise click.UsageError(
            "a profile stores no secrets: pass --principal and --token-file instead of a token in the URL"
        )
    pairs(options, "-X")
    kept: dict[str, Any] = {"server": server}
    for field, value in more.items():
        if value is not None:
            kept[field] = value if field == "principal" else str(Path(value).resolve())
    if options:
        kept["options"] = list(options)
    found = _read()
    found.profiles[name] = kept
    found.used = found.used or name
    _write(found)
    hint(f"braid profile use {name}", "braid topic list")


@click.command(epilog="Example: braid profile use shop")
@click.argument("name", required=False)
@click.option("--none", is_flag=True, help="Use no profile.")
def use(name: str | None, *, none: bool) -> None:
    """Use the profile NAME for commands that name no server."""
    if (name is None) is not none:
        raise click.UsageError("pass the name of a profile, or --none")
    found = _read()
    if name is not None:
        _known(found, name)
    found.used = name
    _write(found)


@click.command("list", epilog="Example: braid profile list")
def list_() -> None:
    """List profiles; * marks the default."""
    found = _read()
    rows = [
        ["*" if name == found.used else "", name, each.get("server"), each.get("principal")]
        for name, each in sorted(found.profiles.items())
    ]
    print_table(["", "NAME", "SERVER", "PRINCIPAL"], rows)


@click.command(epilog="Example: braid profile delete shop")
@_NAME
def delete(name: str) -> None:
    """Delete the profile NAME; files that it names are kept."""
    found = _read()
    _known(found, name)
    del found.profiles[name]
    found.used = None if found.used == name else found.used
    _write(found)
