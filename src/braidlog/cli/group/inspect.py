"""`braid group list`, `describe`: members, committed offsets and lag.

Lag is computed by `model/reporting/node_report.py` for every partition that has a committed offset or that members
read. A deleted topic has no lag.
"""

from collections.abc import Iterable, Sequence

import click
import msgspec
from msgspec.structs import astuple

from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.names import complete_groups
from braidlog.cli.terminal.output import LISTING, OUTPUT, hint, print_json, print_listing, print_table
from braidlog.cli.terminal.watch import watched
from braidlog.client.blocking import Client
from braidlog.client.drivers.contract import GroupInfo, GroupMember, Span
from braidlog.client.errors import Refusal, RefusedError
from braidlog.model.reporting.node_report import lag_of


class GroupRow(msgspec.Struct, frozen=True):
    """Row of `braid group list -o json`. `lag`: of all partitions that the group has committed or reads. `kind`: `classic`
    (a member assigns partitions) or `consumer` (the coordinator does); empty if the protocol has one kind only."""

    group: str
    kind: str
    state: str
    members: int
    lag: int


class PositionRow(msgspec.Struct, frozen=True):
    """`committed` is null before the first commit; `latest` and `lag` are null if the topic does not exist."""

    topic: str
    partition: int
    committed: int | None
    latest: int | None
    lag: int | None


class GroupDescription(msgspec.Struct, frozen=True):
    """Output of `braid group describe -o json`. `kind` as in `braid group list`."""

    group: str
    kind: str
    state: str
    members: list[GroupMember]
    positions: list[PositionRow]
    lag: int


def spans_of(client: Client, topic: str) -> tuple[Span, ...] | None:
    """Return the offset ranges of a topic; None if it does not exist."""
    try:
        return client.admin.describe_topic(topic).partitions
    except RefusedError as error:
        if error.reason is not Refusal.TOPIC_NOT_FOUND:
            raise
        return None


def commits_of(client: Client, group: str, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return all committed offsets of the group; of `topics` only, if the protocol lists one topic at a time."""
    if client.capabilities.group_offsets:
        return client.admin.group_offsets(group)
    return {
        (each.topic, each.partition): each.committed
        for topic in topics
        for each in client.admin.lag(group, topic)
        if each.committed is not None
    }


def positions_of(client: Client, info: GroupInfo) -> list[PositionRow]:
    commits = commits_of(client, info.group, info.topics)
    spans = {topic: spans_of(client, topic) or () for topic in {*info.topics, *(topic for topic, _ in commits)}}
    read = {(topic, number) for topic in info.topics for number in range(len(spans[topic]))}
    return [
        _position(topic, number, commits.get((topic, number)), spans[topic])
        for topic, number in sorted({*commits, *read})
    ]


def _position(topic: str, number: int, committed: int | None, spans: tuple[Span, ...]) -> PositionRow:
    if number >= len(spans):
        return PositionRow(topic, number, committed, None, None)
    span = spans[number]
    return PositionRow(topic, number, committed, span.latest, lag_of(committed, span.earliest, span.latest))


def described(client: Client, group: str) -> GroupDescription:
    info = client.admin.describe_group(group)
    positions = positions_of(client, info)
    lag = sum(row.lag or 0 for row in positions)
    return GroupDescription(group, info.kind, info.state, list(info.members), positions, lag)


@click.command("list", epilog="Example: braid group list -o name")
@LISTING
@with_client
@watched
def list_(client: Client, output: str) -> None:
    """List consumer groups with state, members and lag."""

    def rows(names: Sequence[str]) -> list[GroupRow]:
        groups = [described(client, name) for name in names]
        return [GroupRow(each.group, each.kind, each.state, len(each.members), each.lag) for each in groups]

    empty = "No groups.", "braid tail TOPIC --group NAME"
    head = ["GROUP", "KIND", "STATE", "MEMBERS", "LAG"]
    print_listing(client.admin.list_groups(), output, rows, head, empty, "braid group describe")


@click.command(epilog="Example: braid group describe billing -o json")
@click.argument("group", shell_complete=complete_groups)
@OUTPUT
@with_client
@watched
def describe(client: Client, group: str, output: str) -> None:
    """Describe GROUP: members, committed offsets and lag."""
    found = described(client, group)
    if output == "json":
        print_json(found)
        return
    kind = f"{found.kind} group, " if found.kind else ""
    click.echo(f"{found.group}: {kind}{found.state or 'unknown'}, lag {found.lag}")
    if found.members:
        cells = [[row.member, ", ".join(map(str, row.partitions))] for row in found.members]
        print_table(["MEMBER", "PARTITIONS"], cells, indent="  ")
    if found.positions:
        head = ["TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG"]
        gone = "topic deleted"
        rows = ([*astuple(row)[:3], gone if row.latest is None else row.latest, row.lag] for row in found.positions)
        print_table(head, rows, indent="  ")
    hint(f"braid group reset {group} --to earliest --dry-run")
