"""Failure detection, played from `tests/replication/control/scenarios/swim.txt`."""

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from braidlog.replication.control.swim import (
    PATIENCE_FACTOR_MAX,
    PING_MS,
    SILENCE_MS_MAX,
    AskWitness,
    ConnectionRefused,
    LeaseExpired,
    Leave,
    Members,
    MetadataSilent,
    MetadataTick,
    Ping,
    PingRequest,
    Pong,
    SendReport,
    Swim,
    SwimMessage,
    SwimReady,
    Tick,
    Verdict,
    WitnessReport,
    step,
)

NODES = (1, 2, 3)

TEXT = (Path(__file__).parent / "scenarios" / "swim.txt").read_text(encoding="utf-8")
SCENARIOS = {
    name: [line for line in body.splitlines() if line.strip()]
    for name, body in re.findall(r"^== (.*)\n((?:(?!==|#).*\n?)*)", TEXT, re.MULTILINE)
}
LINE = re.compile(r"(!?)(\d+)\s+(.*?)(?:\s*-> (.*))?$")


def life(text: str) -> tuple[int, int]:
    node, _, incarnation = text.partition(".")
    return int(node), int(incarnation)


def message(text: str) -> SwimMessage:
    first, *rest = text.replace(":", "").split()
    if first == "report":
        by, one, _, found = rest
        return WitnessReport(int(by), *life(one), is_alive=found == "alive", is_refused=found == "refused")
    kinds: dict[str, Callable[[], SwimMessage]] = {
        "members": lambda: Members(tuple(life(each) for each in rest)),
        "tick": lambda: Tick(int(rest[0]) if rest else 0),
        "pong": lambda: Pong(int(rest[0]), 1),
        "refused": lambda: ConnectionRefused(int(rest[0])),
        "request": lambda: PingRequest(int(rest[0]), *life(rest[2])),
        "lease": lambda: LeaseExpired(*life(rest[1])),
        "metadata": lambda: MetadataSilent() if rest == ["silent"] else MetadataTick(tuple(map(int, rest[1:]))),
        "leave": lambda: Leave(*life(rest[0])),
    }
    return kinds[first]()


def in_words(ready: SwimReady) -> str:
    words = []
    for each in ready.send:
        match each:
            case Ping(node):
                words.append(f"ping {node}")
            case AskWitness(witness, node):
                words.append(f"ask {witness} about {node}")
            case SendReport(to, found):
                state = "alive" if found.is_alive else "refused" if found.is_refused else "silent"
                words.append(f"tell {to}: {found.node} is {state}")
    return ", ".join([*words, *(f"dead {each.node}.{each.incarnation}" for each in ready.verdicts)])


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    swim = Swim(node=1)
    last_ms = 0
    for line in SCENARIOS[name]:
        parsed = LINE.match(line)
        assert parsed, line
        paused, at, event, follows = parsed.groups()
        now_ms = int(at)
        assert now_ms >= last_ms, line
        for between_ms in range(last_ms // 100 * 100 + 100, now_ms, 100) if not paused else ():
            swim, ready = step(swim, Tick(), between_ms)
            assert all(isinstance(each, Ping) for each in ready.send), (line, between_ms, in_words(ready))
            assert not ready.verdicts, (line, between_ms)
        last_ms = now_ms
        swim, ready = step(swim, message(event), now_ms)
        assert in_words(ready) == (follows or ""), line


def test_the_scenarios_are_read() -> None:
    assert len(SCENARIOS) == TEXT.count("\n== ")


class StarvedNode:
    """Runs in slices; what was sent to it while it was stopped is read when it runs again."""

    def __init__(self, node: int, rng: Random, stopped_ms: tuple[int, int]) -> None:
        self.node = node
        self.swim = step(Swim(node=node), Members(tuple((each, 1) for each in NODES)), 0)[0]
        self.inbox: list[tuple[int, object]] = []
        self.verdicts: list[tuple[int, Verdict]] = []
        self.is_dead = False
        self._rng = rng
        self._stopped_ms = stopped_ms
        self._runs = self._until = self._tick_ms = 0

    def is_running(self, now_ms: int) -> bool:
        if now_ms >= self._until:
            stopped_ms = self._rng.randint(*self._stopped_ms)
            self._runs = now_ms + stopped_ms
            self._until = self._runs + max(stopped_ms // 4, 1)
        return now_ms >= self._runs and not self.is_dead

    def run(self, now_ms: int, nodes: dict[int, "StarvedNode"]) -> None:
        """What a turn of its loop does, timers and sockets in any order."""
        inbox, self.inbox = self.inbox, []
        is_late = self._rng.random() < 0.5
        if is_late:
            self._take(inbox, now_ms, nodes)
        if now_ms >= self._tick_ms:
            self._tick_ms = now_ms + PING_MS
            self._step(Tick(), now_ms, nodes)
        if not is_late:
            self._take(inbox, now_ms, nodes)

    def _take(self, inbox: list[tuple[int, object]], now_ms: int, nodes: dict[int, "StarvedNode"]) -> None:
        for sender, each in inbox:
            if isinstance(each, Ping):
                nodes[sender].inbox.append((self.node, Pong(self.node, 1)))
            else:
                self._step(each, now_ms, nodes)  # type: ignore[arg-type]

    def _step(self, told: SwimMessage, now_ms: int, nodes: dict[int, "StarvedNode"]) -> None:
        self.swim, ready = step(self.swim, told, now_ms)
        for each in ready.send:
            match each:
                case Ping(node):
                    nodes[node].inbox.append((self.node, each))
                case AskWitness(witness, node, incarnation):
                    nodes[witness].inbox.append((self.node, PingRequest(self.node, node, incarnation)))
                case SendReport(to, report):
                    nodes[to].inbox.append((self.node, report))
        self.verdicts += [(now_ms, each) for each in ready.verdicts]


@pytest.mark.parametrize(("starved", "slice_ms"), [(NODES, 400), (NODES, 1200), (NODES, 2000), ((2,), 400)])
@pytest.mark.parametrize("seed", range(5))
def test_starved_nodes_accuse_nobody_and_still_find_the_dead(
    seed: int, starved: tuple[int, ...], slice_ms: int
) -> None:
    """Stopped for 80 % of the time, in slices of up to `slice_ms`, for two minutes; then one of them dies."""
    rng = Random(seed)
    nodes = {node: StarvedNode(node, rng, (50, slice_ms) if node in starved else (0, 0)) for node in NODES}

    def run(first_ms: int, last_ms: int) -> list[tuple[int, Verdict]]:
        for now_ms in range(first_ms, last_ms, 5):
            for node in nodes.values():
                if node.is_running(now_ms):
                    node.run(now_ms, nodes)
        return [verdict for node in nodes.values() for verdict in node.verdicts]

    assert run(0, 120_000) == []
    nodes[2].is_dead = True
    died_ms = 120_000
    found = run(died_ms, died_ms + 4 * PATIENCE_FACTOR_MAX * SILENCE_MS_MAX)
    assert found
    assert {verdict.node for _, verdict in found} == {2}
