"""`braid group reset`, `delete`: change the committed offsets of a group.

Nothing changes while the group has members, because they would overwrite the reset. A new offset is always within
its partition.
"""

import click
import msgspec
from msgspec.structs import astuple

from braidlog.cli import NO, REFUSED, end
from braidlog.cli.group.inspect import commits_of
from braidlog.cli.terminal.arguments import YES, confirm
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.names import complete_groups
from braidlog.cli.terminal.output import OUTPUT, hint, plural, print_json, print_table
from braidlog.client.blocking import Client
from braidlog.client.drivers.contract import Commits, Span
from braidlog.client.errors import UnsupportedError
from braidlog.model.clock import SystemClock
from braidlog.model.time_parsing import FORMS, parse_time


class Move(msgspec.Struct, frozen=True):
    """Old and new offset of a group in a partition. `committed` is null if no offset was committed."""

    topic: str
    partition: int
    committed: int | None
    to: int
    lag: int


class ResetReport(msgspec.Struct, frozen=True):
    """Output of `braid group reset -o json`."""

    group: str
    done: bool
    moves: list[Move]


class ResetTarget(msgspec.Struct, frozen=True):
    """Target of a reset: an end of the partition, an offset, a time, or a number of records forward or back."""

    word: str | None = None
    offset: int | None = None
    at_ms: int | None = None
    by: int | None = None


def reset_target(to: str | None, by: int | None) -> ResetTarget:
    if (to is None) == (by is None):
        raise click.UsageError("no target: pass --to earliest, latest, OFFSET or TIME; or --by N")
    if to is None:
        return ResetTarget(by=by)
    if to in ("earliest", "latest"):
        return ResetTarget(word=to)
    if to.isdecimal():
        return ResetTarget(offset=int(to))
    try:
        return ResetTarget(at_ms=parse_time(to, SystemClock().now_ms()))
    except ValueError:
        raise click.UsageError(f"unknown target {to!r}; use earliest, latest, an offset, or a time: {FORMS}") from None


@click.command(
    epilog="""\b
Example:
  braid group reset billing --to earliest --dry-run
  braid group reset billing --to 2026-11-15T08:00:00Z --topic orders
  braid group reset billing --by -100 --topic orders -p 0 --yes
"""
)
@click.argument("group", shell_complete=complete_groups)
@click.option("--to", metavar="earliest|latest|OFFSET|TIME", help="New offset in each partition.")
@click.option("--by", type=int, help="Move by this many records; negative moves back.")
@click.option("--topic", "topics", multiple=True, help="Topic to reset; repeatable.  [default: all committed topics]")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Partition to reset; repeatable."
)
@click.option("--dry-run", is_flag=True, help="Print the new offsets without committing them.")
@YES
@OUTPUT
@with_client
def reset(  # noqa: PLR0913 - one parameter an option
    client: Client,
    *,
    group: str,
    to: str | None,
    by: int | None,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Reset the committed offsets of GROUP to an end of each partition, an offset or a time, or by a number of records.

    Refused while the group has members: stop them first.
    """
    target = reset_target(to, by)
    if client.capabilities.commits is Commits.MEMBERS:
        raise UnsupportedError(
            f"{client.dialect} accepts commits of group members only; reset the group through another protocol"
        )
    _refuse_members(client, group)
    moves = _moves(client, group, target, topics, partitions)
    if not moves:
        end(NO, f"group {group!r} has no committed offsets; pass --topic for topics that it has not committed")
    if output == "table":
        print_table(["TOPIC", "PARTITION", "COMMITTED", "NEW OFFSET", "LAG"], map(astuple, moves))
    if not dry_run:
        confirm(f"Reset {plural(len(moves), 'committed offset')} of group {group}?", yes=yes)
        for topic in {move.topic for move in moves}:
            client.admin.reset_group(group, topic, {move.partition: move.to for move in moves if move.topic == topic})
    if output == "json":
        print_json(ResetReport(group, not dry_run, moves))
        return
    click.echo("Nothing changed (--dry-run)." if dry_run else f"Reset the offsets of group {group}.")
    hint(f"braid group describe {group}")


def _refuse_members(client: Client, group: str) -> None:
    """Exit if the group has members; dialects without membership skip the check."""
    if not client.capabilities.group_admin or group not in client.admin.list_groups():
        return
    members = client.admin.describe_group(group).members
    if members:
        count = plural(len(members), "member")
        end(REFUSED, f"group {group!r} has {count}: members would overwrite the reset; stop them first")


def _moves(
    client: Client, group: str, target: ResetTarget, topics: tuple[str, ...], partitions: tuple[int, ...]
) -> list[Move]:
    if not topics and not client.capabilities.group_offsets:
        raise click.UsageError(f"{client.dialect} lists committed offsets of one topic at a time: pass --topic")
    commits = commits_of(client, group, topics)
    found = []
    for topic in topics or sorted({topic for topic, _ in commits}):
        spans = client.admin.describe_topic(topic).partitions
        for number, span in enumerate(spans):
            committed = commits.get((topic, number))
            if (partitions and number not in partitions) or (committed is None and not topics):
                continue
            offset = _offset(client, topic, number, span, committed, target)
            found.append(Move(topic, number, committed, offset, span.latest - offset))
    return found


def _offset(client: Client, topic: str, partition: int, span: Span, committed: int | None, target: ResetTarget) -> int:
    wanted = span.latest
    if target.word == "earliest":
        wanted = span.earliest
    elif target.offset is not None:
        wanted = target.offset
    elif target.by is not None:
        wanted = (span.earliest if committed is None else committed) + target.by
    elif target.at_ms is not None:
        found = client.admin.offset_at(topic, partition, target.at_ms)
        wanted = span.latest if found is None else found
    return min(max(wanted, span.earliest), span.latest)


@click.command(
    epilog="""\b
Example:
  braid group delete billing --yes
  braid group delete billing --topic orders
"""
)
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, help="Delete only the offsets of this topic; repeatable.")
@YES
@with_client
def delete(client: Client, groups: tuple[str, ...], topics: tuple[str, ...], *, yes: bool) -> None:
    """Delete each GROUP and its committed offsets; with --topic, only the offsets of these topics.

    Refused while the group has members, or, with --topic, while a member is subscribed to it.
    """
    client.require("group_offsets")
    what = (
        f"the offsets of {', '.join(groups)} in {', '.join(topics)}"
        if topics
        else f"{', '.join(groups)} and all committed offsets"
    )
    confirm(f"Delete {what}?", yes=yes)
    for group in groups:
        if topics:
            _forget_topics(client, group, topics)
        else:
            client.admin.delete_group(group)
            click.echo(f"deleted {group}")


def _forget_topics(client: Client, group: str, topics: tuple[str, ...]) -> None:
    places = [place for place in client.admin.group_offsets(group) if place[0] in topics]
    if not places:
        end(
            NO,
            f"group {group!r} has no committed offsets in {', '.join(topics)}; see `braid group describe {group}`",
        )
    client.admin.delete_offsets(group, places)
    click.echo(f"{group}: deleted {plural(len(places), 'committed offset')}")
