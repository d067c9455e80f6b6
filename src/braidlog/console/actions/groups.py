"""Actions on groups: reset offsets, delete.

Offsets do not change while a group has members, because they would overwrite the reset. A new offset is always within
its partition.
"""

from functools import partial

from braidlog.client.drivers.contract import Span
from braidlog.console.actions.plan import Plan, Planner, plural
from braidlog.console.form_fields import Fields, FormError, integer, text_of
from braidlog.console.listener_clients import Clients
from braidlog.console.rendering import UNKNOWN
from braidlog.model.clock import SystemClock
from braidlog.model.reporting.node_report import lag_of
from braidlog.model.time_parsing import FORMS, parse_time

WORDS = {
    "earliest": "earliest",
    "latest": "latest",
    "offset": "offset",
    "time": "time",
    "shift": "shift by",
}


async def reset(fields: Fields, clients: Clients) -> Plan:
    group, topic, kind = text_of(fields, "group"), text_of(fields, "topic"), text_of(fields, "to")
    only = integer(fields, "partition", 0)
    if kind not in WORDS:
        raise FormError(f"the target is one of {', '.join(WORDS)}")
    if (await clients.admin.describe_group(group)).members:
        raise FormError(f"group {group} has members, which would overwrite the reset: stop them first")
    commits = await clients.admin.group_offsets(group)
    rows, wanted = [], {}
    for number, span in enumerate((await clients.admin.describe_topic(topic)).partitions):
        if only in (None, number):
            was = commits.get((topic, number))
            wanted[number] = await _target(fields, clients, (topic, number), span, was)
            lag = lag_of(was, span.earliest, span.latest)
            rows.append((number, UNKNOWN if was is None else was, wanted[number], lag, span.latest - wanted[number]))
    if not rows:
        raise FormError(f"unknown partition {only} of topic {topic}")
    return Plan(
        f"Reset the offsets of group {group} in {plural(len(rows), 'partition')} of topic {topic}. The group will repeat or "
        "skip the records between the old and the new offsets.",
        partial(clients.admin.reset_group, group, topic, wanted),
        f"Offsets of group {group} reset.",
        head=("partition", "committed", "new offset", "current lag", "new lag"),
        rows=rows,
    )


async def _target(fields: Fields, clients: Clients, place: tuple[str, int], span: Span, was: int | None) -> int:
    kind, text = fields["to"], fields.get("at", "").strip()
    wanted = span.latest
    if kind == "earliest":
        wanted = span.earliest
    elif kind == "offset":
        wanted = integer({"offset": text_of(fields, "at")}, "offset", 0) or 0
    elif kind == "shift":
        if not text.removeprefix("-").isdecimal() or len(text) > 15:
            raise FormError("a shift is a number of records; negative moves back")
        wanted = (span.earliest if was is None else was) + int(text)
    elif kind == "time":
        try:
            at_ms = parse_time(text, SystemClock().now_ms())
        except ValueError:
            raise FormError(f"a time is {FORMS}") from None
        found = await clients.admin.offset_at(*place, at_ms)
        wanted = span.latest if found is None else found
    return min(max(wanted, span.earliest), span.latest)


async def delete(fields: Fields, clients: Clients) -> Plan:
    group = text_of(fields, "group")
    commits = await clients.admin.group_offsets(group)
    return Plan(
        f"Delete group {group} and its {plural(len(commits), 'committed offset')}. Consumers lose their position.",
        partial(clients.admin.delete_group, group),
        f"Group {group} deleted.",
        "/groups",
        is_harmful=True,
    )


ACTIONS: dict[str, Planner] = {"group-reset": reset, "group-delete": delete}
