"""Actions on topics: create, settings, partitions, trim, delete."""

import asyncio
import contextlib
from functools import partial
from typing import Final
from urllib.parse import quote

from braidlog.client.errors import ClientError
from braidlog.console.actions.plan import Plan, Planner, plural
from braidlog.console.form_fields import Fields, FormError, integer, settings_in, text_of
from braidlog.console.listener_clients import Clients
from braidlog.console.rendering import UNKNOWN
from braidlog.model.errors import BrokerError
from braidlog.model.names import check_topic_name

SPANS_SECONDS_MAX: Final = 2.0
"""How long a plan waits for optional details."""


async def create(fields: Fields, clients: Clients) -> Plan:
    name, count = text_of(fields, "topic"), integer(fields, "partitions", 1) or 1
    try:
        check_topic_name(name)
    except BrokerError as error:
        raise FormError(str(error)) from error
    settings = settings_in(fields.get("settings", ""))
    rows = [(setting, value) for setting, value in settings.items()]
    return Plan(
        f"Create topic {name} with {plural(count, 'partition')}.",
        partial(clients.admin.create_topic, name, count, settings),
        f"Topic {name} created.",
        f"/topics/{quote(name)}",
        ("setting", "value") if rows else (),
        rows,
    )


async def change_setting(fields: Fields, clients: Clients) -> Plan:
    topic, name = text_of(fields, "topic"), text_of(fields, "setting")
    value = None if "reset" in fields else fields.get("value", "").strip()
    now = next((each for each in await clients.admin.topic_settings(topic) if each.name == name), None)
    if now is None:
        raise FormError(f"unknown topic setting {name[:60]!r}")
    to = "to the node's default" if value is None else f"to {value}"
    return Plan(
        f"Set {name} of topic {topic} {to}; it is now {now.value} ({'default' if now.is_default else 'set for this topic'}).",
        partial(clients.admin.alter_topic, topic, {name: value}),
        f"{name} of topic {topic} set.",
    )


async def add_partitions(fields: Fields, clients: Clients) -> Plan:
    topic, wanted = text_of(fields, "topic"), integer(fields, "partitions", 1)
    there = await clients.admin.partition_count(topic)
    if wanted is None or wanted <= there:
        raise FormError(f"{topic} has {plural(there, 'partition')}; the partition count can only be increased")
    return Plan(
        f"Add {plural(wanted - there, 'partition')} to topic {topic}, which has {there}. Partitions cannot be removed later, and "
        "new records of a key may go to another partition than earlier ones.",
        partial(clients.admin.alter_topic, topic, partitions=wanted),
        f"Topic {topic} now has {plural(wanted, 'partition')}.",
    )


async def trim(fields: Fields, clients: Clients) -> Plan:
    """Delete the records before an offset, or all existing records (no offset)."""
    topic, only, before = text_of(fields, "topic"), integer(fields, "partition", 0), integer(fields, "offset", 0)
    spans = (await clients.admin.describe_topic(topic)).partitions
    if only is not None and only >= len(spans):
        raise FormError(f"{topic} has partitions 0 to {len(spans) - 1}")
    wanted = {
        number: min(span.latest if before is None else before, span.latest)
        for number, span in enumerate(spans)
        if only in (None, number)
    }
    rows = [(number, spans[number].earliest, upto) for number, upto in wanted.items() if upto > spans[number].earliest]
    if not rows:
        raise FormError("no records before this offset")
    count = sum(upto - first for _, first, upto in rows)
    where = "in all partitions" if only is None else f"in partition {only}"

    async def run() -> None:
        for number, _, upto in rows:
            await clients.admin.trim(topic, number, upto)

    return Plan(
        f"Delete the records of topic {topic} {where} {'up to the current end' if before is None else f'before offset {before}'} "
        "permanently.",
        run,
        f"{plural(count, 'record')} of topic {topic} deleted.",
        head=("partition", "first offset", "new first offset", "records"),
        rows=[(number, first, upto, upto - first) for number, first, upto in rows],
        is_harmful=True,
    )


async def delete(fields: Fields, clients: Clients) -> Plan:
    topic = text_of(fields, "topic")
    count, records = await clients.admin.partition_count(topic), UNKNOWN
    with contextlib.suppress(ClientError, TimeoutError):  # the topic can be deleted while a leader is offline
        async with asyncio.timeout(SPANS_SECONDS_MAX):
            spans = (await clients.admin.describe_topic(topic)).partitions
            records = str(sum(span.latest - span.earliest for span in spans))
    return Plan(
        f"Delete topic {topic} with its {plural(count, 'partition')} and all records permanently.",
        partial(clients.admin.delete_topic, topic),
        f"Topic {topic} deleted.",
        "/topics",
        ("partitions", "records"),
        [(count, records)],
        is_harmful=True,
    )


ACTIONS: dict[str, Planner] = {
    "topic-create": create,
    "topic-setting": change_setting,
    "topic-partitions": add_partitions,
    "topic-trim": trim,
    "topic-delete": delete,
}
