"""Actions on users, rules, quotas and transactions. Only a hash of a password is sent to the node."""

from functools import partial

import msgspec

from braidlog.client.drivers.contract import AccessRule
from braidlog.client.drivers.quotas import Quota
from braidlog.client.drivers.transactions import OPEN
from braidlog.console.actions.plan import Plan, Planner, plural
from braidlog.console.form_fields import Fields, FormError, integer, text_of
from braidlog.console.listener_clients import Clients

RESOURCES = ("topic", "group", "transactional_id", "key", "cluster")
OPERATIONS = ("describe", "read", "write", "create", "delete", "alter", "cluster", "*")
PASSWORD_CHARS_MIN = 8
PLACE = "/access"


async def set_password(fields: Fields, clients: Clients) -> Plan:
    user, password = text_of(fields, "user"), fields.get("password", "")
    if len(password) < PASSWORD_CHARS_MIN:
        raise FormError(f"a password needs at least {PASSWORD_CHARS_MIN} characters")
    is_there = bool(await clients.admin.list_users(user))
    words = (
        f"Change the password of user {user}. Open connections stay authenticated."
        if is_there
        else f"Create user {user}."
    )
    run = partial(clients.admin.set_password, user, password)
    return Plan(words, run, f"Password of user {user} set.", PLACE, is_harmful=is_there)


async def delete_user(fields: Fields, clients: Clients) -> Plan:
    user = text_of(fields, "user")
    words = f"Delete user {user} and its password. Its access rules are kept."
    return Plan(words, partial(clients.admin.delete_user, user), f"User {user} deleted.", PLACE, is_harmful=True)


def _rule(fields: Fields) -> AccessRule:
    principal, name = text_of(fields, "principal"), fields.get("name", "").strip()
    resource, operation = text_of(fields, "resource"), text_of(fields, "operation")
    if resource not in RESOURCES or operation not in OPERATIONS:
        raise FormError(f"invalid rule: resources are {', '.join(RESOURCES)}; operations are {', '.join(OPERATIONS)}")
    if resource != "cluster" and not name:
        raise FormError("missing name: enter a name, a prefix that ends with *, or *")
    return AccessRule(principal, resource, name, operation, "deny" in fields)


def shown_rule(rule: AccessRule) -> str:
    may = "may not" if rule.deny else "may"
    what = "the cluster" if rule.resource == "cluster" else f"{rule.resource.replace('_', ' ')} {rule.name}"
    return f"{'every principal' if rule.principal == '*' else rule.principal} {may} {rule.operation} {what}"


async def add_rule(fields: Fields, clients: Clients) -> Plan:
    rule = _rule(fields)
    run = partial(clients.admin.add_rule, rule)
    return Plan(f"Add a rule: {shown_rule(rule)}.", run, "Rule added.", PLACE, is_harmful=rule.deny)


async def delete_rule(fields: Fields, clients: Clients) -> Plan:
    rule = _rule(fields)

    async def run() -> None:
        if not await clients.admin.delete_rule(rule):
            raise FormError("rule not found, or it comes from the node's settings; change it there")

    return Plan(f"Delete the rule: {shown_rule(rule)}.", run, "Rule deleted.", PLACE, is_harmful=True)


def _whose(fields: Fields) -> tuple[str | None, str | None, str | None]:
    user, client_id, address = (fields.get(name, "").strip() or None for name in ("user", "client_id", "address"))
    if not (user or client_id or address):
        raise FormError("missing target: enter a user, a client id or an address")
    return user, client_id, address


def _named(whose: tuple[str | None, str | None, str | None]) -> str:
    words = zip(("user", "client id", "address"), whose, strict=True)
    return ", ".join(f"{kind} {name}" for kind, name in words if name)


async def set_quota(fields: Fields, clients: Clients) -> Plan:
    whose = _whose(fields)
    names = ("append_bytes_per_second", "fetch_bytes_per_second", "request_percent", "connections_per_second")
    rates = {name: value for name in names if (value := integer(fields, name, 1)) is not None}
    if not rates:
        raise FormError("enter at least one rate")
    quota = msgspec.convert({**dict(zip(("user", "client_id", "address"), whose, strict=True)), **rates}, Quota)
    rows = [(name.replace("_", " "), value) for name, value in rates.items()]
    run = partial(clients.admin.set_quota, quota)
    return Plan(f"Set the quota of {_named(whose)}.", run, "Quota set.", PLACE, ("rate", "limit"), rows)


async def remove_quota(fields: Fields, clients: Clients) -> Plan:
    whose = _whose(fields)
    words = f"Remove the quota of {_named(whose)}. The quota of the node's settings applies again."
    return Plan(words, partial(clients.admin.remove_quota, *whose), "Quota removed.", PLACE)


async def abort_transaction(fields: Fields, clients: Clients) -> Plan:
    name = text_of(fields, "transactional_id")
    found = await clients.admin.describe_transaction(name)
    if found.state != OPEN:
        raise FormError(f"{name} has no open transaction, its state is {found.state}")
    return Plan(
        f"Abort the transaction of {name} in {plural(len(found.partitions), 'partition')} and discard its records and offsets. "
        f"Producer {found.producer_id} is fenced and has to be restarted.",
        partial(clients.admin.abort_transaction, found),
        f"Transaction of {name} aborted.",
        head=("topic", "partition"),
        rows=[(each.topic, each.partition) for each in found.partitions],
        is_harmful=True,
    )


ACTIONS: dict[str, Planner] = {
    "user-set": set_password,
    "user-delete": delete_user,
    "rule-add": add_rule,
    "rule-delete": delete_rule,
    "quota-set": set_quota,
    "quota-remove": remove_quota,
    "transaction-abort": abort_transaction,
}
