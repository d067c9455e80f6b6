"""`braid cluster elect` and `braid cluster reassign`: who leads and who holds a partition is changed.

Knows: how it is asked for and how it looks. Refuses to know: which plan is good (`reassignment_plan.py`), how a move goes on.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import IO, Final

import click
import msgspec

from braidlog.cli import NO, LazyGroup, end
from braidlog.cli.cluster.reassignment_plan import Plan, make_plan
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import LINES, OUTPUT, PLAN, hint, line_of, named, plural, print_json, print_table
from braidlog.client.blocking import Client
from braidlog.client.drivers.cluster import ClusterInfo, PartitionMove, PartitionOutcome, Place

FINE: Final = frozenset({"", "ELECTION_NOT_NEEDED"})
PAUSE_SECONDS: Final = 1.0
PLACES = click.argument("names", metavar="[TOPIC/N]...", nargs=-1)


class MovesReport(msgspec.Struct, frozen=True):
    """A line of `braid cluster reassign watch -o json`."""

    moving: tuple[PartitionMove, ...]


def places_of(names: Sequence[str], info: ClusterInfo) -> list[Place]:
    """TOPIC/N is a partition, TOPIC all that it has."""
    known = [(each.topic, each.partition) for each in info.partitions]
    found: dict[Place, None] = {}
    for name in names:
        topic, slash, number = name.partition("/")
        if slash and not number.isdecimal():
            raise click.UsageError(f"{name!r} names no partition; write TOPIC/NUMBER, such as orders/0")
        named = [place for place in known if place[0] == topic and (not slash or place[1] == int(number))]
        if not named:
            raise click.ClickException(f"no partition {name!r}; `braid cluster partitions` lists those that are there")
        found.update(dict.fromkeys(named))
    return list(found)


def _tell(told: Iterable[PartitionOutcome], output: str, done: str, nothing: str) -> None:
    outcomes = list(told)
    if output == "json":
        print_json(outcomes)
    elif not outcomes:
        click.echo(nothing)
    else:
        shown = [
            [f"{each.topic}/{each.partition}", f"{each.message} ({each.error})" if each.error else done]
            for each in outcomes
        ]
        print_table(["PARTITION", "OUTCOME"], shown)
    if any(each.error not in FINE for each in outcomes):
        end(NO)


@click.command(epilog="Example: braid cluster elect orders/0 orders/1")
@PLACES
@click.option("--preferred", is_flag=True, help="The first replica leads: the only election there is, and the default.")
@OUTPUT
@with_client
def elect(client: Client, names: tuple[str, ...], *, preferred: bool, output: str) -> None:  # noqa: ARG001 - the default
    """Let the first replica of each partition lead again: of those named (TOPIC is all that it has), or else of all.

    The first replica in a partition's list is its preferred leader. After a node was away others lead what it led; it leads
    again by itself after some minutes of calm, or at once by this command. Only a replica that is in sync is elected: nothing
    that was acknowledged is ever lost by it. Exit code 1 if some partition could not be led by its first replica.
    """
    wanted = places_of(names, client.admin.describe_cluster()) if names else None
    _tell(client.admin.elect_preferred(wanted), output, "elected", "Every preferred leader leads.")


@click.group(
    cls=LazyGroup,
    lazy={
        "plan": ("braidlog.cli.cluster.placement:plan", "Which partitions would move; nothing is changed."),
        "apply": ("braidlog.cli.cluster.placement:apply", "Begin the moves of a plan."),
        "watch": ("braidlog.cli.cluster.placement:watch", "Wait until all moves are done."),
        "cancel": ("braidlog.cli.cluster.placement:cancel", "Give moves up."),
    },
    epilog="""\b
Example: let nodes 1, 2 and 4 hold what 1, 2 and 3 held
  braid cluster reassign plan --nodes 1,2,4 > plan.json
  braid cluster reassign apply plan.json
  braid cluster reassign watch
""",
)
def reassign() -> None:
    """Move partitions to other nodes: make a plan, look at it, apply it, watch it.

    A move adds the new replicas, waits until they are in sync, and only then removes the old ones: meanwhile everything is
    served, and nothing is ever on fewer nodes than before.
    """


@click.command(epilog="Example: braid cluster reassign plan orders --nodes 1,2,3 > plan.json")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--nodes", required=True, metavar="N,N,...", help="The nodes that are to hold them; no others will.")
@click.option("--replicas", type=click.IntRange(1), help="So many of each partition.  [default: as many as it has]")
@PLAN
@with_client
def plan(client: Client, topics: tuple[str, ...], nodes: str, replicas: int | None, output: str) -> None:
    """Print which partitions of the topics (or else of all) have to move, so that these nodes hold them evenly.

    As few as possible move; replicas of one partition are on racks apart, as far as the nodes have racks. The plan is what
    Kafka's own tool for reassignments takes too: change it by hand if you like. Nothing is done before `apply`.
    """
    info = client.admin.describe_cluster()
    racks = _racks(nodes, info)
    wanted = {topic for topic, _ in places_of(topics, info)}
    chosen = [each for each in info.partitions if (each.topic in wanted if topics else not each.topic.startswith("__"))]
    try:
        made = make_plan(chosen, racks, replicas)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        print_json(made)
    else:
        before = {(each.topic, each.partition): each.replicas for each in chosen}
        rows = [
            [f"{each.topic}/{each.partition}", _listed(before[each.topic, each.partition]), _listed(each.replicas)]
            for each in made.partitions
        ]
        print_table(["PARTITION", "NOW ON", "THEN ON"], rows)
    if not made.partitions:
        hint("nothing has to move")


def _racks(nodes: str, info: ClusterInfo) -> dict[int, str]:
    """Of each node that is named; where none has one, each is a rack of its own."""
    known = {each.node: each for each in info.nodes}
    numbers = [word.strip() for word in nodes.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise click.UsageError(f"--nodes takes numbers with commas between, such as 1,2,3, not {nodes!r}")
    for number in map(int, numbers):
        if number not in known or not known[number].alive:
            state = "is fenced: start it first" if number in known else "is not there"
            raise click.ClickException(f"node {number} {state}; `braid cluster nodes` lists all")
    return {number: known[number].rack or f" {number}" for number in map(int, numbers)}


@click.command(epilog="Example: braid cluster reassign apply plan.json")
@click.argument("file", type=click.File("rb"))
@OUTPUT
@with_client
def apply(client: Client, file: IO[bytes], output: str) -> None:
    """Begin the moves of a plan; FILE is what `plan` printed, - is the standard input. Exit code 1 if one was refused.

    Each partition is taken or refused by itself. It can be applied again: what is on its way or there is left alone.
    """
    try:
        wanted = msgspec.json.decode(file.read(), type=Plan)
    except msgspec.DecodeError as error:
        raise click.ClickException(
            f"{file.name} is no plan: {error}; `braid cluster reassign plan` prints one"
        ) from error
    targets = {(each.topic, each.partition): each.replicas for each in wanted.partitions}
    _tell(client.admin.move_partitions(targets), output, "on its way", "The plan has no moves.")
    hint("braid cluster reassign watch")


@click.command(epilog="Example: braid cluster reassign watch && braid cluster elect")
@click.option("--once", is_flag=True, help="Tell what moves now, and do not wait.")
@LINES
@with_client
def watch(client: Client, *, once: bool, output: str) -> None:
    """Tell which partitions are on the move each time that changes, until none is.

    A move to a node that is away waits for it: start the node, or give the move up (`braid cluster reassign cancel`).
    """
    pause, seen = threading.Event(), None
    while True:
        moving = client.admin.list_moves()
        if moving != seen:
            told = line_of(msgspec.json.encode(MovesReport(tuple(moving)))) if output == "json" else _moving(moving)
            click.echo(told)
        if once or not moving:
            return
        seen = moving
        pause.wait(PAUSE_SECONDS)


def _moving(moves: Sequence[PartitionMove]) -> str:
    if not moves:
        return "No partition is on the move."
    places = [
        f"{each.topic}/{each.partition} (from {_listed(each.removing) or 'none'} to {_listed(each.adding) or 'none'})"
        for each in moves
    ]
    return f"{plural(len(moves), 'partition')} on the move: {named(places)}"


@click.command(epilog="Example: braid cluster reassign cancel orders/0")
@PLACES
@OUTPUT
@with_client
def cancel(client: Client, names: tuple[str, ...], output: str) -> None:
    """Give up the moves of these partitions (TOPIC is all that it has), or else all: each is where it was before.

    Refused, with exit code 1, if too few of the replicas it had before are in sync, or nothing moves.
    """
    if names:
        places = places_of(names, client.admin.describe_cluster())
    else:
        places = [(each.topic, each.partition) for each in client.admin.list_moves()]
    targets: dict[Place, None] = dict.fromkeys(places)
    _tell(client.admin.move_partitions(targets), output, "given up", "No partition is on the move.")


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))
