"""The calls of shared keys, as they are written down; and what Porcupine says of them, with `PORCUPINE` set (it needs Go)."""

import json
import os
from pathlib import Path

import pytest
from tests.histories.checker import check
from tests.histories.history import Action, Call, History, Outcome, Value
from tests.nemesis.keys import CALLS_MAX, Keys, second_opinion, write_calls


def call(action: Action, argument: Value | tuple[Value, Value], start: float, end: float, answer: Value) -> Call:
    return Call("one", "k", action, argument, start, end, Outcome.ACKNOWLEDGED, answer)


GOOD = [
    call(Action.GET, None, 0, 1, None),
    call(Action.SET, 7, 1, 2, None),
    call(Action.INCREMENT, 1, 2, 3, 8),
    Call("two", "k", Action.DELETE, None, 3),
    call(Action.GET, None, 4, 5, 8),
    call(Action.GET, None, 6, 7, None),
    call(Action.INCREMENT, 1, 8, 9, 1),
    call(Action.DELETE, None, 10, 11, True),
    call(Action.DELETE, None, 12, 13, False),
]
NAMES = [
    call(Action.SWAP, (None, 1), 0, 1, True),
    call(Action.DELETE, None, 1, 2, True),
    Call("two", "k", Action.SWAP, (None, 2), 2),
    call(Action.DELETE, None, 4, 5, True),
    call(Action.SWAP, (None, 3), 6, 7, True),
]
TAKEN_TWICE = [*NAMES[:1], call(Action.SWAP, (None, 2), 2, 3, True)]
STALE = [*GOOD[:3], call(Action.GET, None, 4, 5, 7)]


def test_calls_are_written_with_what_is_known_of_them(tmp_path: Path) -> None:
    refused = Call("one", "k", Action.SET, 1, 0, 1, Outcome.REFUSED)
    write_calls(tmp_path / "calls", [refused, *GOOD[2:4]])
    counted, deleted = map(json.loads, (tmp_path / "calls").read_text(encoding="utf-8").splitlines())
    assert counted == {
        "key": "k",
        "client": "one",
        "action": "increment",
        "argument": 1,
        "start": 2_000_000_000,
        "end": 3_000_000_000,
        "answer": 8,
    }
    assert (deleted["client"], deleted["start"], deleted["end"]) == ("two", 3_000_000_000, None)


def test_a_key_with_a_call_in_doubt_is_not_used_any_more() -> None:
    keys = Keys("k")
    assert keys.next() == keys.next() == "k.0"
    keys.spoilt("k.0")
    keys.spoilt("k.0")  # of another client, which had asked before
    assert [keys.next() for _ in range(CALLS_MAX + 1)] == ["k.1"] * CALLS_MAX + ["k.2"]


@pytest.mark.skipif("PORCUPINE" not in os.environ, reason="with PORCUPINE set, which needs Go")
@pytest.mark.parametrize(("calls", "is_right"), [(GOOD, True), (STALE, False), (NAMES, True), (TAKEN_TWICE, False)])
def test_porcupine_and_our_own_checker_agree(tmp_path: Path, calls: list[Call], is_right: bool) -> None:
    write_calls(tmp_path / "calls", calls)
    assert (second_opinion(tmp_path / "calls") == []) is is_right
    assert (check(History(operations=[*calls])) == []) is is_right
