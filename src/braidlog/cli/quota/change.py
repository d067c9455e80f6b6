"""`braid quota list`, `set`, `remove`."""

from collections.abc import Callable

import click

from braidlog.cli import NO, end
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import OUTPUT, hint, print_rows
from braidlog.client.blocking import Client
from braidlog.client.drivers.quotas import Quota

HEAD = ["USER", "CLIENT-ID", "ADDRESS", "APPEND-BYTES", "FETCH-BYTES", "REQUEST-PERCENT", "CONNECTIONS"]
_PER_SECOND = click.IntRange(1)


def _whose(command: Callable[..., None]) -> Callable[..., None]:
    for option, help_ in (
        ("--address", "Client address; `*`: addresses without their own quota. Excludes the other options."),
        ("--client-id", "Client id; `*`: client ids without their own quota."),
        ("--user", "Principal; `*`: users without their own quota. With --client-id: this client of this user."),
    ):
        command = click.option(option, metavar="NAME", help=help_)(command)
    return command


def _check_whose(quota: Quota) -> None:
    if quota.whose == (None, None, None):
        raise click.UsageError("missing target: pass --user, --client-id or --address")
    if quota.address is not None and (quota.user, quota.client_id) != (None, None):
        raise click.UsageError("--address cannot be combined with --user or --client-id")


def _shown(quota: Quota) -> str:
    named = zip(("user", "client id", "address"), quota.whose, strict=True)
    return ", ".join(f"{kind} {name}" for kind, name in named if name is not None)


@click.command("list", epilog="Example: braid quota list -o json")
@OUTPUT
@with_client
def list_(client: Client, output: str) -> None:
    """List all quotas, including those of the node's settings; bytes and connections are per second."""
    empty = "No quotas: no client is throttled.", "braid quota set --user NAME --append-bytes 1000000"
    print_rows(client.admin.list_quotas(), output, HEAD, empty)


@click.command("set", epilog="Example: braid quota set --user bulk --append-bytes 1000000 --request-percent 20")
@_whose
@click.option("--append-bytes", "append_bytes_per_second", type=_PER_SECOND, help="Bytes appended per second.")
@click.option("--fetch-bytes", "fetch_bytes_per_second", type=_PER_SECOND, help="Bytes fetched per second.")
@click.option("--request-percent", type=click.FloatRange(0.1, 100), help="Percentage of the node's event loop time.")
@click.option(
    "--connections", "connections_per_second", type=_PER_SECOND, help="New connections per second of an address."
)
@with_client
def set_(client: Client, **fields: str | float | None) -> None:
    """Set quotas of a user, a client id or an address; rates that are not named do not change."""
    quota = Quota(**fields)  # type: ignore[arg-type]  # click has validated each
    _check_whose(quota)
    if quota == Quota(*quota.whose):
        raise click.UsageError("nothing to set: pass --append-bytes, --fetch-bytes, --request-percent or --connections")
    client.admin.set_quota(quota)
    click.echo(f"set the quota of {_shown(quota)}")
    hint("braid quota list")


@click.command(epilog="Example: braid quota remove --user bulk")
@_whose
@with_client
def remove(client: Client, user: str | None, client_id: str | None, address: str | None) -> None:
    """Remove a quota; the quota of the node's settings, if any, applies again."""
    quota = Quota(user, client_id, address)
    _check_whose(quota)
    before = client.admin.list_quotas()
    if quota.whose not in [each.whose for each in before]:
        end(NO, f"{_shown(quota)} has no quota; see `braid quota list`")
    client.admin.remove_quota(user, client_id, address)
    if client.admin.list_quotas() == before:
        end(NO, f"the quota of {_shown(quota)} comes from the node's settings; change it there")
    click.echo(f"removed the quota of {_shown(quota)}")
