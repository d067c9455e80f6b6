"""`braid cluster elect` and `braid cluster reassign`: change leaders and replicas of partitions."""

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
    """Line of `braid cluster reassign watch -o json`."""

    moving: tuple[PartitionMove, ...]


def places_of(names: Sequence[str], info: ClusterInfo) -> list[Place]:
    """Resolve TOPIC/N to a partition, and TOPIC to all its partitions."""
    known = [(each.topic, each.partition) for each in info.partitions]
    found: dict[Place, None] = {}
    for name in names:
        topic, slash, number = name.partition("/")
        if slash and not number.isdecimal():
            raise click.UsageError(f"{name!r} is not a partition; pass TOPIC/NUMBER, such as orders/0")
        named = [place for place in known if place[0] == topic and (not slash or place[1] == int(number))]
        if not named:
            raise click.ClickException(f"unknown partition {name!r}; see `braid cluster partitions`")
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
@click.option("--preferred", is_flag=True, help="Elect the first replica; the default, and the only kind of election.")
@OUTPUT
@with_client
def elect(client: Client, names: tuple[str, ...], *, preferred: bool, output: str) -> None:  # noqa: ARG001 - the default
    """Elect the preferred leader of each named partition (TOPIC names all its partitions), or of all partitions.

    The preferred leader is the first replica of a partition. When a node returns after an outage, its partitions have
    other leaders; preferred leaders are elected automatically after some minutes without changes, or immediately by
    this command. Only an in-sync replica is elected, so no acknowledged record is lost. Exits with 1 if a preferred
    leader could not be elected.
    """
    wanted = places_of(names, client.admin.describe_cluster()) if names else None
    _tell(client.admin.elect_preferred(wanted), output, "elected", "Every preferred leader leads.")


@click.group(
    cls=LazyGroup,
    lazy={
        "plan": ("braidlog.cli.cluster.placement:plan", "Print a plan, without changing anything."),
        "apply": ("braidlog.cli.cluster.placement:apply", "Start the moves of a plan."),
        "watch": ("braidlog.cli.cluster.placement:watch", "Wait until all moves are complete."),
        "cancel": ("braidlog.cli.cluster.placement:cancel", "Cancel moves."),
    },
    epilog="""\b
Example: move the replicas of nodes 1, 2 and 3 to nodes 1, 2 and 4
  braid cluster reassign plan --nodes 1,2,4 > plan.json
  braid cluster reassign apply plan.json
  braid cluster reassign watch
""",
)
def reassign() -> None:
    """Move partitions between nodes: make a plan, review it, apply it, watch it.

    A move adds the new replicas, waits until they are in sync, and then removes the old replicas. Partitions stay
    available, and never have fewer replicas than before.
    """


@click.command(epilog="Example: braid cluster reassign plan orders --nodes 1,2,3 > plan.json")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--nodes", required=True, metavar="N,N,...", help="The nodes that will hold all replicas.")
@click.option("--replicas", type=click.IntRange(1), help="Replicas of each partition.  [default: unchanged]")
@PLAN
@with_client
def plan(client: Client, topics: tuple[str, ...], nodes: str, replicas: int | None, output: str) -> None:
    """Print a plan that spreads the partitions of the topics, or of all topics, evenly over the nodes.

    As few partitions as possible move. Replicas of a partition are on different racks where nodes have racks. The plan
    has the format of Kafka's kafka-reassign-partitions; you can edit it. Nothing changes before `apply`.
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
        hint("no partition has to move")


def _racks(nodes: str, info: ClusterInfo) -> dict[int, str]:
    """Return the rack of each named node; a node without a rack is its own rack."""
    known = {each.node: each for each in info.nodes}
    numbers = [word.strip() for word in nodes.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise click.UsageError(f"--nodes takes node numbers separated by commas, such as 1,2,3, not {nodes!r}")
    for number in map(int, numbers):
        if number not in known or not known[number].alive:
            state = "is fenced: start it first" if number in known else "does not exist"
            raise click.ClickException(f"node {number} {state}; see `braid cluster nodes`")
    return {number: known[number].rack or f" {number}" for number in map(int, numbers)}


@click.command(epilog="Example: braid cluster reassign apply plan.json")
@click.argument("file", type=click.File("rb"))
@OUTPUT
@with_client
def apply(client: Client, file: IO[bytes], output: str) -> None:
    """Start the moves of a plan; FILE is the output of `plan`, - is standard input.

    Each partition is accepted or refused separately; exits with 1 if one was refused. A plan can be applied again:
    moves that are running or complete are not changed.
    """
    try:
        wanted = msgspec.json.decode(file.read(), type=Plan)
    except msgspec.DecodeError as error:
        raise click.ClickException(
            f"{file.name} is not a plan: {error}; create one with `braid cluster reassign plan`"
        ) from error
    targets = {(each.topic, each.partition): each.replicas for each in wanted.partitions}
    _tell(client.admin.move_partitions(targets), output, "started", "The plan has no moves.")
    hint("braid cluster reassign watch")


@click.command(epilog="Example: braid cluster reassign watch && braid cluster elect")
@click.option("--once", is_flag=True, help="Print the current moves, and do not wait.")
@LINES
@with_client
def watch(client: Client, *, once: bool, output: str) -> None:
    """Print the partitions that are moving, on every change, until all moves are complete.

    A move to an offline node waits for it: start the node, or cancel the move (`braid cluster reassign cancel`).
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
        return "No partition is moving."
    places = [
        f"{each.topic}/{each.partition} (from {_listed(each.removing) or 'none'} to {_listed(each.adding) or 'none'})"
        for each in moves
    ]
    return f"{plural(len(moves), 'partition')} moving: {named(places)}"


@click.command(epilog="Example: braid cluster reassign cancel orders/0")
@PLACES
@OUTPUT
@with_client
def cancel(client: Client, names: tuple[str, ...], output: str) -> None:
    """Cancel the moves of the named partitions (TOPIC names all its partitions), or all moves.

    Each partition returns to its previous replicas. Exits with 1 if too few of them are in sync, or nothing moves.
    """
    if names:
        places = places_of(names, client.admin.describe_cluster())
    else:
        places = [(each.topic, each.partition) for each in client.admin.list_moves()]
    targets: dict[Place, None] = dict.fromkeys(places)
    _tell(client.admin.move_partitions(targets), output, "cancelled", "No partition is moving.")


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))
