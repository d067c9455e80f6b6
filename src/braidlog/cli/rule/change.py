"""`braid rule list`, `add`, `delete`."""

import sys
from collections.abc import Callable, Sequence

import click
from msgspec.structs import astuple

from braidlog.cli import NO, say
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import OUTPUT, print_json, print_table
from braidlog.client.blocking import Client
from braidlog.client.drivers.contract import AccessRule
from braidlog.client.errors import RefusedError
from braidlog.wire.kafka.codes import ErrorCode

OPERATIONS = ("describe", "read", "write", "create", "delete", "alter", "cluster", "*")
RESOURCES = ("topic", "group", "transactional_id", "key")


DENY = click.option("--deny", is_flag=True, help="Deny instead of allow; deny rules take precedence.")


def naming(command: Callable[..., None]) -> Callable[..., None]:
    """Add PRINCIPAL, OPERATION... and the options that name resources."""
    for resource in reversed(RESOURCES):
        option = "--" + resource.replace("_", "-")
        command = click.option(
            option, resource, metavar="NAME", help=f"A {resource.replace('_', ' ')}, PREFIX*, or *."
        )(command)
    command = click.argument("operations", nargs=-1, required=True, type=click.Choice(OPERATIONS))(command)
    return click.argument("who", metavar="PRINCIPAL")(command)


def _rules(principal: str, operations: tuple[str, ...], *, deny: bool, **named: str | None) -> list[AccessRule]:
    """Return one rule per operation and named resource; the operation `cluster` applies to the node."""
    places = [(resource, name) for resource, name in named.items() if name]
    of_node = [AccessRule(principal, "cluster", "*", "cluster", deny)] if "cluster" in operations else []
    others = [operation for operation in operations if operation != "cluster"]
    if others and not places:
        raise click.UsageError("missing resource: pass --topic, --group, --transactional-id or --key")
    return of_node + [AccessRule(principal, *place, operation, deny) for place in places for operation in others]


@click.command("list")
@OUTPUT
@with_client
def list_(client: Client, *, output: str) -> None:
    """List all rules, including those of the node's settings, one line per operation."""
    rules: Sequence[AccessRule] = ()
    empty = "No rules: only superusers have access."
    try:
        rules = client.admin.list_rules()
    except RefusedError as error:
        if error.code != ErrorCode.SECURITY_DISABLED:
            raise
        empty = "Access control is off; add `auth.rules` to the node's settings first."
    if output == "json":
        print_json(rules)
    elif rules:
        lines = [(*astuple(rule)[:-1], "deny" if rule.deny else "allow") for rule in rules]
        print_table(["PRINCIPAL", "RESOURCE", "NAME", "OPERATION", "RULE"], lines)
    else:
        click.echo(empty)


@click.command(epilog="Example: braid rule add billing read --topic orders --group 'billing-*'")
@naming
@DENY
@with_client
def add(client: Client, who: str, operations: tuple[str, ...], *, deny: bool, **named: str | None) -> None:
    """Allow, or with --deny deny, PRINCIPAL (`*`: every principal) each OPERATION on the named resources."""
    add_rules(client, who, operations, deny=deny, **named)


def add_rules(client: Client, who: str, operations: tuple[str, ...], *, deny: bool, **named: str | None) -> None:
    for rule in _rules(who, operations, deny=deny, **named):
        client.admin.add_rule(rule)
        click.echo(f"added {_shown(rule)}")


@click.command(epilog="Example: braid rule delete billing read --group 'billing-*'")
@naming
@DENY
@with_client
def delete(client: Client, who: str, operations: tuple[str, ...], *, deny: bool, **named: str | None) -> None:
    """Delete the added rules with this principal, operations and resources."""
    delete_rules(client, who, operations, deny=deny, **named)


def delete_rules(client: Client, who: str, operations: tuple[str, ...], *, deny: bool, **named: str | None) -> None:
    missing = []
    for rule in _rules(who, operations, deny=deny, **named):
        if client.admin.delete_rule(rule):
            click.echo(f"deleted {_shown(rule)}")
        else:
            missing.append(rule)
    for rule in missing:
        say(f"rule not found: {_shown(rule)}; rules of the node's settings are changed there")
    if missing:
        sys.exit(NO)


def _shown(rule: AccessRule) -> str:
    what = "the node" if rule.resource == "cluster" else f"{rule.resource.replace('_', ' ')} {rule.name}"
    return f"{rule.principal} may {'not ' if rule.deny else ''}{rule.operation} {what}"
