"""`braid acl allow`, `deny`, `remove`.

Knows: words. Refuses to know: what they do, which is what `braid rule` does.
"""

import click

from braidlog.cli.rule.change import DENY, add_rules, delete_rules, naming
from braidlog.cli.terminal.connection import with_client
from braidlog.client.blocking import Client


@click.command(epilog="Example: braid acl allow billing read --topic orders --group 'billing-*'")
@naming
@with_client
def allow(client: Client, who: str, operations: tuple[str, ...], **named: str | None) -> None:
    """Let PRINCIPAL (`*` is everybody) do each OPERATION with what is named, from now on."""
    add_rules(client, who, operations, deny=False, **named)


@click.command(epilog="Example: braid acl deny mallory '*' --group 'billing-*'")
@naming
@with_client
def deny(client: Client, who: str, operations: tuple[str, ...], **named: str | None) -> None:
    """Refuse each OPERATION with what is named to PRINCIPAL, from now on, whatever other rules allow."""
    add_rules(client, who, operations, deny=True, **named)


@click.command(epilog="Example: braid acl remove mallory '*' --group 'billing-*' --deny")
@naming
@DENY
@with_client
def remove(client: Client, who: str, operations: tuple[str, ...], *, deny: bool, **named: str | None) -> None:
    """Take back rules that were added, named in the same words; with --deny those that deny."""
    delete_rules(client, who, operations, deny=deny, **named)
