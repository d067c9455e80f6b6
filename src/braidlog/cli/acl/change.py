"""`braid acl allow`, `deny`, `remove`: Kafka's words for `braid rule`."""

import click

from braidlog.cli.rule.change import DENY, add_rules, delete_rules, naming
from braidlog.cli.terminal.connection import with_client
from braidlog.client.blocking import Client


@click.command(epilog="Example: braid acl allow billing read --topic orders --group 'billing-*'")
@naming
@with_client
def allow(client: Client, who: str, operations: tuple[str, ...], **named: str | None) -> None:
    """Allow PRINCIPAL (`*`: every principal) each OPERATION on the named resources."""
    add_rules(client, who, operations, deny=False, **named)


@click.command(epilog="Example: braid acl deny mallory '*' --group 'billing-*'")
@naming
@with_client
def deny(client: Client, who: str, operations: tuple[str, ...], **named: str | None) -> None:
    """Deny PRINCIPAL each OPERATION on the named resources, even if another rule allows it."""
    add_rules(client, who, operations, deny=True, **named)


@click.command(epilog="Example: braid acl remove mallory '*' --group 'billing-*' --deny")
@naming
@DENY
@with_client
def remove(client: Client, who: str, operations: tuple[str, ...], *, deny: bool, **named: str | None) -> None:
    """Remove the rules with this principal, operations and resources; with --deny, deny rules."""
    delete_rules(client, who, operations, deny=deny, **named)
