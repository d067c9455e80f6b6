"""`braid group list`, `describe`: members, commits, lag.

Knows: how groups look. Refuses to know: how a door tells of them.
Invariant: lag is what is between a commit and the end; where nothing is committed, or the topic is gone, none is invented.
"""

from collections.abc import Iterable

import click
import msgspec
from msgspec.structs import astuple

from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import LISTING, OUTPUT, hint, print_json, print_table
from braidlog.client.blocking import Client
from braidlog.client.drivers.contract import GroupInfo, Span
from braidlog.client.errors import Refusal, RefusedError


class GroupRow(msgspec.Struct, frozen=True):
    """A line of `braid group list -o json`. `lag`: records of all partitions with a commit."""

    group: str
    state: str
    members: int
    lag: int


class MemberRow(msgspec.Struct, frozen=True):
    member: str
    partitions: list[int]


class PositionRow(msgspec.Struct, frozen=True):
    """`latest` and `lag` are null where the topic is gone."""

    topic: str
    partition: int
    committed: int
    latest: int | None
    lag: int | None


class GroupDescription(msgspec.Struct, frozen=True):
    """What `braid group describe -o json` prints."""

    group: str
    state: str
    members: list[MemberRow]
    positions: list[PositionRow]
    lag: int


def spans_of(client: Client, topic: str) -> tuple[Span, ...] | None:
    """None: the topic is gone."""
    try:
        return client.admin.describe_topic(topic).partitions
    except RefusedError as error:
        if error.reason is not Refusal.TOPIC_NOT_FOUND:
            raise
        return None


def commits_of(client: Client, group: str, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """All that the group has committed; of these topics, where a door tells of one topic at a time."""
    if client.capabilities.group_offsets:
        return client.admin.group_offsets(group)
    return {
        (each.topic, each.partition): each.committed
        for topic in topics
        for each in client.admin.lag(group, topic)
        if each.committed is not None
    }


def positions_of(client: Client, info: GroupInfo) -> list[PositionRow]:
    found = []
    spans: dict[str, tuple[Span, ...] | None] = {}
    for (topic, partition), committed in sorted(commits_of(client, info.group, info.topics).items()):
        if topic not in spans:
            spans[topic] = spans_of(client, topic)
        known = spans[topic]
        if known is None or partition >= len(known):
            found.append(PositionRow(topic, partition, committed, None, None))
            continue
        span = known[partition]
        found.append(PositionRow(topic, partition, committed, span.latest, span.lag(committed)))
    return found


def described(client: Client, group: str) -> GroupDescription:
    info = client.admin.describe_group(group)
    positions = positions_of(client, info)
    members = [MemberRow(each.member, list(each.partitions)) for each in info.members]
    return GroupDescription(group, info.state, members, positions, sum(row.lag or 0 for row in positions))


@click.command("list", epilog="Example: braid group list -o name")
@LISTING
@with_client
def list_(client: Client, output: str) -> None:
    """Which groups there are, whether somebody reads, and how far behind they are."""
    names = client.admin.list_groups()
    if output == "name":
        for name in names:
            click.echo(name)
        return
    found = [described(client, name) for name in names]
    rows = [GroupRow(each.group, each.state, len(each.members), each.lag) for each in found]
    if output == "json":
        print_json(rows)
    elif not rows:
        click.echo("There are no groups yet.")
        hint("braid tail TOPIC --group NAME")
    else:
        print_table(["GROUP", "STATE", "MEMBERS", "LAG"], map(astuple, rows))
        hint(f"braid group describe {rows[0].group}")


@click.command(epilog="Example: braid group describe billing -o json")
@click.argument("group")
@OUTPUT
@with_client
def describe(client: Client, group: str, output: str) -> None:
    """Members of GROUP, what it has committed, and how many records it is behind."""
    found = described(client, group)
    if output == "json":
        print_json(found)
        return
    click.echo(f"{found.group}: {found.state or 'unknown'}, {found.lag} behind")
    if found.members:
        cells = [[row.member, ", ".join(map(str, row.partitions))] for row in found.members]
        print_table(["MEMBER", "PARTITIONS"], cells, indent="  ")
    if found.positions:
        head = ["TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG"]
        gone = "topic is gone"
        rows = ([*astuple(row)[:3], gone if row.latest is None else row.latest, row.lag] for row in found.positions)
        print_table(head, rows, indent="  ")
    hint(f"braid group reset {group} --to earliest --dry-run")
