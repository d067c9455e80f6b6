"""Failure detection, played from `tests/replication/scenarios/swim.txt`."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from braidlog.replication.swim import (
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
    WitnessReport,
    step,
)

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
