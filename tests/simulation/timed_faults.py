"""Faults of a simulated cluster that come by time: deaths, cuts, pauses, wrong accusations, a store of metadata that is away.

Knows: what each fault does. Refuses to know: what follows from it; the mix of the run says which there are, and how often.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.simulated_messages import TOPIC
from tests.simulation.virtual_time import US_PER_MS

from braidlog.cluster.metadata.image import Image
from braidlog.replication.assignment import Assignment
from braidlog.replication.control import swim
from braidlog.replication.control.reassignment import cancel, reassign

if TYPE_CHECKING:
    from tests.simulation.simulated_node import SimulatedNode
    from tests.simulation.universe import Universe

FIRST_US = 300 * US_PER_MS


class TimedFaults:
    """One after the other, until the universe heals."""

    def __init__(self, universe: "Universe") -> None:
        self._universe = universe
        self._draw = universe.stream("faults")

    def start(self) -> None:
        if self._universe.mix.faults:
            self._universe.time.after(FIRST_US, self._next)

    def _next(self) -> None:
        universe, draw = self._universe, self._draw
        if universe.is_healing:
            return
        universe.time.after(int(draw.expovariate(1 / universe.mix.fault_every_us)) + 1, self._next)
        kinds = sorted(universe.mix.faults)
        kind = draw.choices(kinds, [universe.mix.faults[each] for each in kinds])[0]
        node = universe.nodes[draw.choice(sorted(universe.nodes))]
        other = universe.nodes[draw.choice(sorted(universe.nodes))]
        lasting_us = int(draw.choice((50, 400, 1_500)) * US_PER_MS * (0.5 + draw.random()))
        if universe.is_wanted():
            universe.note(node.number, f"{kind} (with {other.number}) for {lasting_us // US_PER_MS} ms")
            universe.count(kind)
            _FAULTS[kind](universe, node, other, lasting_us)


def _ends(kind: str) -> "Fault":
    def end(universe: "Universe", node: "SimulatedNode", _: "SimulatedNode", __: int) -> None:
        if node.is_alive and universe.may_lose(kind):
            universe.end(node, kind, "by chance")

    return end


def _blackout(universe: "Universe", _: "SimulatedNode", __: "SimulatedNode", ___: int) -> None:
    """All of them at once."""
    for node in universe.nodes.values():
        if node.is_alive:
            universe.end(node, "power" if universe.mix.flush_on_ack else "kill", "blackout")


def _pause(universe: "Universe", node: "SimulatedNode", _: "SimulatedNode", lasting_us: int) -> None:
    node.paused_until_us = universe.time.now_us + lasting_us


def _cut(universe: "Universe", node: "SimulatedNode", other: "SimulatedNode", lasting_us: int) -> None:
    one, two = node.number, other.number
    universe.network.cut(one, two)
    universe.time.after(lasting_us, lambda: universe.network.heal(one, two))


def _isolate(universe: "Universe", node: "SimulatedNode", _: "SimulatedNode", lasting_us: int) -> None:
    one = node.number
    for number in universe.nodes:
        universe.network.cut(one, number)
        universe.network.cut(number, one)
    universe.time.after(lasting_us, lambda: universe.network.heal_around(one))


def _reset(universe: "Universe", node: "SimulatedNode", other: "SimulatedNode", _: int) -> None:
    universe.network.reset(node.number, other.number)


def _accuse(universe: "Universe", accuser: "SimulatedNode", accused: "SimulatedNode", _: int) -> None:
    """A detector that is wrong."""
    if accuser.metadata is None or not accuser.is_alive or accuser is accused:
        return
    member = accuser.metadata.image.cluster.member(accused.number)
    if member is not None:
        verdict = swim.Verdict(accused.number, member.registered.incarnation, "wrongly")
        universe.enter(accuser, accuser.life, lambda: accuser.accuse(verdict))


def _deafen(universe: "Universe", _: "SimulatedNode", other: "SimulatedNode", __: int) -> None:
    """A watch shows nothing any more, until somebody notices."""
    for watch in universe.etcd.watches[other.number - 1 : other.number]:
        watch.is_deaf = True


def _etcd_away(universe: "Universe", _: "SimulatedNode", other: "SimulatedNode", lasting_us: int) -> None:
    for number in universe.nodes:
        _etcd_away_for_one(universe, universe.nodes[number], other, lasting_us)


def _etcd_away_for_one(universe: "Universe", node: "SimulatedNode", _: "SimulatedNode", lasting_us: int) -> None:
    universe.etcd_away_until_us[node.number] = universe.time.now_us + lasting_us
    universe.etcd.deliver_late()


def _reassign(universe: "Universe", node: "SimulatedNode", other: "SimulatedNode", lasting_us: int) -> None:
    """To some of the nodes, two or three; or back, if it is on its way. What is drawn is the order of their numbers."""
    name = universe.names[lasting_us % len(universe.names)]
    order = sorted(universe.nodes, key=lambda number: (number * 7 + lasting_us) % 11)
    target = tuple(order[: 2 + (lasting_us // 7) % 2])

    def decide(known: Assignment, image: Image) -> Assignment:
        nodes, minimum = image.cluster.nodes(), image.topics[TOPIC].min_in_sync
        if known.adding and other.number == 1:
            universe.count("move cancelled")
            return cancel(known, nodes, minimum)
        return reassign(known, target)

    if node.is_alive and node.metadata is not None and node.incarnation:
        universe.enter(node, node.life, lambda: node.change_assignment(name, decide))


def _flip(universe: "Universe", node: "SimulatedNode", _: "SimulatedNode", lasting_us: int) -> None:
    universe.flip(node, universe.stream(f"flip {lasting_us}"))


Fault = Callable[["Universe", "SimulatedNode", "SimulatedNode", int], None]
_FAULTS: Final[dict[str, Fault]] = {
    "kill": _ends("kill"),
    "power": _ends("power"),
    "wipe": _ends("wipe"),
    "blackout": _blackout,
    "pause": _pause,
    "cut": _cut,
    "isolate": _isolate,
    "reset": _reset,
    "accuse": _accuse,
    "deaf": _deafen,
    "etcd away": _etcd_away,
    "etcd away for one": _etcd_away_for_one,
    "reassign": _reassign,
    "flip": _flip,
}
