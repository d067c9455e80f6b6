"""`braid rule list`, `add`, `delete`.

Knows: how rules look and are typed. Refuses to know: what one allows.
"""

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


DENY = click.option("--deny", is_flag=True, help="The rule denies: it wins over those that allow.")


def naming(command: Callable[..., None]) -> Callable[..., None]:
    """PRINCIPAL OPERATION... and what they are about."""
    for resource in reversed(RESOURCES):
        option = "--" + resource.replace("_", "-")
        command = click.option(
            option, resource, metavar="NAME", help=f"A {resource.replace('_', ' ')}, PREFIX*, or *."
        )(command)
    command = click.argument("operations", nargs=-1, required=True, type=click.Choice(OPERATIONS))(command)
    return click.argument("who", metavar="PRINCIPAL")(command)


def _rules(principal: str, operations: tuple[str, ...], *, deny: bool, **named: str | None) -> list[AccessRule]:
    """One for each operation on each thing that was named; `cluster` is about the node."""
    places = [(resource, name) for resource, name in named.items() if name]
    of_node = [AccessRule(principal, "cluster", "*", "cluster", deny)] if "cluster" in operations else []
    others = [operation for operation in operations if operation != "cluster"]
    if others and not places:
        raise click.UsageError("nothing named: pass --topic, --group, --transactional-id or --key")
    return of_node + [AccessRule(principal, *place, operation, deny) for place in places for operation in others]


@click.command("list")
@OUTPUT
@with_client
def list_(client: Client, *, output: str) -> None:
    """All rules, those of the node's settings too: one line for each operation."""
    rules: Sequence[AccessRule] = ()
    empty = "There are no rules: only superusers have access."
    try:
        rules = client.admin.list_rules()
    except RefusedError as error:
        if error.code != ErrorCode.SECURITY_DISABLED:
            raise
        empty = "Access control is off: every client has access. Rules need `auth.rules` in the node's settings."
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
    """Let PRINCIPAL (`*` is everybody) do each OPERATION with what is named, from now on; or deny it."""
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
    """Take back rules that were added, named in the same words."""
    delete_rules(client, who, operations, deny=deny, **named)


def delete_rules(client: Client, who: str, operations: tuple[str, ...], *, deny: bool, **named: str | None) -> None:
    missing = []
    for rule in _rules(who, operations, deny=deny, **named):
        if client.admin.delete_rule(rule):
            click.echo(f"deleted {_shown(rule)}")
        else:
            missing.append(rule)
    for rule in missing:
        say(f"no such rule was added: {_shown(rule)}; those of the node's settings are changed there")
    if missing:
        sys.exit(NO)


def _shown(rule: AccessRule) -> str:
    what = "the node" if rule.resource == "cluster" else f"{rule.resource.replace('_', ' ')} {rule.name}"
    return f"{rule.principal} may {'not ' if rule.deny else ''}{rule.operation} {what}"
