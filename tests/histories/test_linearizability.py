"""Calls of one key: histories made by hand, random ones against a search that tries every order, and what it costs."""

import itertools
import random
from collections.abc import Sequence

import pytest
from tests.histories import linearizability
from tests.histories.checker import check
from tests.histories.history import NEVER, Action, Call, History, Outcome, Value
from tests.histories.linearizability import check_calls, perform

ACKNOWLEDGED, REFUSED, UNKNOWN = Outcome.ACKNOWLEDGED, Outcome.REFUSED, Outcome.UNKNOWN
Argument = Value | tuple[Value, Value]


def done(action: Action, argument: Argument, start: float, end: float, answer: Value = None) -> Call:
    return Call("a", "k", action, argument, start, end, ACKNOWLEDGED, answer)


def get(answer: Value, start: float, end: float) -> Call:
    return done(Action.GET, None, start, end, answer)


def put(value: Value, start: float, end: float) -> Call:
    return done(Action.SET, value, start, end)


def delete(found: bool, start: float, end: float) -> Call:
    return done(Action.DELETE, None, start, end, found)


def add(total: int, start: float, end: float, by: int = 1) -> Call:
    return done(Action.INCREMENT, by, start, end, total)


def swap(expected: Value, new: Value, is_met: bool, start: float, end: float) -> Call:
    return done(Action.SWAP, (expected, new), start, end, is_met)


def doubt(action: Action, argument: Argument, start: float) -> Call:
    return Call("b", "k", action, argument, start)


def refused(action: Action, argument: Argument, start: float, end: float) -> Call:
    return Call("c", "k", action, argument, start, end, REFUSED)


GOOD: dict[str, Sequence[Call]] = {
    "nothing": [],
    "no value yet": [get(None, 1, 2)],
    "written and read": [put(1, 1, 2), get(1, 3, 4)],
    "old value while it is written": [put(1, 1, 2), put(2, 3, 9), get(1, 4, 5)],
    "new value while it is written": [put(1, 1, 2), put(2, 3, 9), get(2, 4, 5)],
    "old, then new, while it is written": [put(1, 1, 2), put(2, 3, 9), get(1, 4, 5), get(2, 6, 7)],
    "two writes at once, either is last": [put(1, 1, 9), put(2, 1, 9), get(1, 10, 11)],
    "they touch": [put(1, 1, 2), get(None, 2, 3)],
    "an unknown write that happened": [put(1, 1, 2), doubt(Action.SET, 2, 3), get(2, 5, 6)],
    "an unknown write that never did": [put(1, 1, 2), doubt(Action.SET, 2, 3), get(1, 5, 6), get(1, 90, 91)],
    "an unknown write that comes late": [put(1, 1, 2), doubt(Action.SET, 2, 3), get(1, 50, 51), get(2, 60, 61)],
    "an unknown write over a later one": [doubt(Action.SET, 1, 1), put(2, 5, 6), get(2, 7, 8), get(1, 9, 10)],
    "a refused write": [put(1, 1, 2), refused(Action.SET, 2, 3, 4), get(1, 5, 6)],
    "set if it is as expected": [put(1, 1, 2), swap(1, 2, True, 3, 4), get(2, 5, 6)],
    "not set, for it was not as expected": [put(1, 1, 2), swap(7, 2, False, 3, 4), get(1, 5, 6)],
    "one of two at once is set": [swap(None, 1, True, 1, 9), swap(None, 2, False, 1, 9), get(1, 10, 11)],
    "an unknown one was set, so the next is not": [
        doubt(Action.SWAP, (None, 1), 1),
        swap(None, 2, False, 3, 4),
        get(1, 5, 6),
    ],
    "an unknown one, seen by the one that follows it": [doubt(Action.SWAP, (None, 1), 1), swap(1, 2, True, 3, 4)],
    "counted": [add(1, 1, 2), add(2, 3, 4), add(7, 5, 6, by=5), get(7, 7, 8)],
    "counted at once, in any order": [add(3, 1, 9), add(1, 1, 9), add(2, 1, 9)],
    "an unknown one was counted": [add(1, 1, 2), doubt(Action.INCREMENT, 1, 3), add(3, 5, 6)],
    "two unknown ones, one was counted": [doubt(Action.INCREMENT, 1, 1), doubt(Action.INCREMENT, 1, 2), add(2, 5, 6)],
    "deleted": [put(1, 1, 2), delete(True, 3, 4), get(None, 5, 6), delete(False, 7, 8)],
    "deleted and counted anew": [add(1, 1, 2), delete(True, 3, 4), add(1, 5, 6)],
    "an unknown delete": [put(1, 1, 2), doubt(Action.DELETE, None, 3), get(None, 5, 6)],
    "an unknown read says nothing": [put(1, 1, 2), doubt(Action.GET, None, 3), get(1, 5, 6)],
}

BAD: dict[str, Sequence[Call]] = {
    "a value out of nothing": [get(1, 1, 2)],
    "a value that nobody wrote": [put(1, 1, 2), get(2, 3, 4)],
    "forgotten": [put(1, 1, 2), get(None, 3, 4)],
    "an old value": [put(1, 1, 2), put(2, 3, 4), get(1, 5, 6)],
    "new, then old, while it is written": [put(1, 1, 2), put(2, 3, 9), get(2, 4, 5), get(1, 6, 7)],
    "two readers, two orders": [put(1, 1, 9), put(2, 1, 9), get(1, 10, 11), get(2, 12, 13)],
    "read before it is written": [get(1, 1, 2), put(1, 3, 4)],
    "an unknown write, read before it began": [get(2, 1, 2), doubt(Action.SET, 2, 3)],
    "an unknown write that comes and goes": [put(1, 1, 2), doubt(Action.SET, 2, 3), get(2, 5, 6), get(1, 7, 8)],
    "an unknown write, twice": [doubt(Action.SET, 1, 1), get(1, 2, 3), put(2, 5, 6), get(2, 7, 8), get(1, 9, 10)],
    "a refused write is seen": [put(1, 1, 2), refused(Action.SET, 2, 3, 4), get(2, 5, 6)],
    "set though it was not as expected": [put(1, 1, 2), swap(7, 2, True, 3, 4)],
    "not set though it was as expected": [put(1, 1, 2), swap(1, 2, False, 3, 4)],
    "both of two at once are set": [swap(None, 1, True, 1, 9), swap(None, 2, True, 1, 9)],
    "not set, and yet there": [put(1, 1, 2), swap(7, 2, False, 3, 4), get(2, 5, 6)],
    "an unknown one and another at the same place": [
        doubt(Action.SWAP, (None, 1), 1),
        swap(None, 2, True, 3, 4),
        get(1, 5, 6),
    ],
    "an increment lost": [add(1, 1, 2), add(1, 3, 4)],
    "one answer for two": [add(1, 1, 9), add(1, 1, 9)],
    "counted twice": [add(1, 1, 2), add(3, 3, 4)],
    "an unknown one counted twice": [doubt(Action.INCREMENT, 1, 1), get(1, 2, 3), get(2, 4, 5)],
    "an unknown one counted before it began": [add(2, 1, 2), doubt(Action.INCREMENT, 1, 3)],
    "deleted, and there": [put(1, 1, 2), delete(True, 3, 4), get(1, 5, 6)],
    "deleted twice": [put(1, 1, 2), delete(True, 3, 4), delete(True, 5, 6)],
    "there, and not deleted": [put(1, 1, 2), delete(False, 3, 4)],
    "back after it was deleted": [put(1, 1, 2), delete(True, 3, 9), get(None, 4, 5), get(1, 6, 7)],
    "counted on after a delete": [add(1, 1, 2), delete(True, 3, 4), add(2, 5, 6)],
    "counted a word": [put("word", 1, 2), add(1, 3, 4)],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert list(check_calls("k", GOOD[name])) == []
    assert check(History(operations=list(GOOD[name]))) == []


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_refused(name: str) -> None:
    assert "no order explains" in next(check_calls("k", BAD[name]))
    assert len(check(History(operations=list(BAD[name])))) == 1


def test_keys_are_checked_one_by_one() -> None:
    other = Call("a", "j", Action.GET, None, 5, 6, ACKNOWLEDGED, None)
    assert check(History(operations=[put(1, 1, 2), other, get(1, 7, 8)])) == []


def test_what_does_not_fit_is_shown() -> None:
    (found,) = check_calls("k", [put(1, 1, 2), put(2, 3, 4), get(1, 5, 6)])
    assert found == "k: no order explains its calls: after 2 of them it is 2, and none follows of: [5, 6] a get → 1"


# ── Random histories ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def random_call(choose: random.Random, client: str) -> Call:
    action = choose.choice(list(Action))
    argument: Argument = None
    if action in (Action.SET, Action.INCREMENT):
        argument = choose.randrange(1, 4)
    elif action is Action.SWAP:
        argument = (choose.choice([None, 1, 2, 3]), choose.randrange(1, 4))
    return Call(client, "k", action, argument)


def random_history(choose: random.Random, *, calls: int, clients: int, in_doubt: float) -> list[Call]:
    """Each call takes effect at one moment between its start and its end: there is an order, by these moments."""
    moments: list[tuple[float, Call]] = []
    free = dict.fromkeys((f"client {number}" for number in range(clients)), 0.0)
    for _ in range(calls):
        client = min(free, key=lambda each: free[each])
        call = random_call(choose, client)
        call.start = free[client] + choose.random()
        moment = call.start + choose.random()
        if choose.random() < in_doubt:
            free[client] = moment
            moment += choose.choice([0, 1, 10, NEVER])
        else:
            call.outcome, call.end = ACKNOWLEDGED, moment + choose.random()
            free[client] = call.end
        moments.append((moment, call))
    value: Value = None
    for moment, call in sorted(moments, key=lambda each: each[0]):
        if moment < NEVER:
            call.answer = _answer(value, call)
            _, value = perform(value, call)
    return [call for _, call in moments]


def _answer(value: Value, call: Call) -> Value:
    """What a key with that value says: written down here once more, not taken from the code under test."""
    match call.action:
        case Action.GET:
            return value
        case Action.DELETE:
            return value is not None
        case Action.INCREMENT:
            assert not isinstance(value, str)
            assert isinstance(call.argument, int)
            return (value or 0) + call.argument
        case Action.SWAP:
            assert isinstance(call.argument, tuple)
            return value == call.argument[0]
        case _:
            return None


def is_linearizable(calls: Sequence[Call]) -> bool:
    """By trying every order of every choice of the unknown ones."""
    known = [call for call in calls if call.outcome is ACKNOWLEDGED]
    unknown = [call for call in calls if call.outcome is UNKNOWN]
    return any(
        _explains(order)
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
        for order in itertools.permutations([*known, *chosen])
    )


def _explains(order: Sequence[Call]) -> bool:
    value: Value = None
    latest_start = -NEVER
    for call in order:
        latest_start = max(latest_start, call.start)
        if call.end < latest_start:
            return False
        if call.outcome is ACKNOWLEDGED and call.action is not Action.SET and call.answer != _answer(value, call):
            return False
        _, value = perform(value, call)
    return True


@pytest.mark.parametrize("seed", range(4))
def test_the_verdict_is_that_of_trying_every_order(seed: int) -> None:
    choose = random.Random(seed)
    verdicts = {True: 0, False: 0}
    for _ in range(150):
        calls = random_history(choose, calls=5, clients=choose.randrange(2, 5), in_doubt=0.25)
        changed = choose.choice(calls)
        if changed.action in (Action.GET, Action.INCREMENT):
            changed.answer = choose.randrange(1, 6)
        else:
            changed.start += choose.choice([-3, 3])
            changed.end = max(changed.end, changed.start)
        verdict = is_linearizable(calls)
        verdicts[verdict] += 1
        assert (list(check_calls("k", calls)) == []) is verdict, (seed, [str(call) for call in calls])
    assert min(verdicts.values()) > 15, "both kinds came up"


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_with_an_order_are_accepted(seed: int) -> None:
    calls = random_history(random.Random(seed), calls=200, clients=10, in_doubt=0.02)
    assert list(check_calls("k", calls)) == [], seed


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_with_one_wrong_answer_are_refused(seed: int) -> None:
    choose = random.Random(seed)
    calls = random_history(choose, calls=200, clients=10, in_doubt=0)
    changed = choose.choice([call for call in calls if call.action in (Action.GET, Action.INCREMENT)])
    changed.answer = 999
    assert list(check_calls("k", calls)) != [], (seed, str(changed))


def test_a_search_that_grows_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "STATES_MAX", 100)
    unknown = [doubt(Action.SET, number, 1) for number in range(20)]
    (found,) = check_calls("k", [*unknown, get(99, 2, 3)])
    assert "undecided after 100 states" in found


def test_an_answer_is_a_word_for_people() -> None:
    assert str(doubt(Action.SWAP, (None, 1), 1)) == "[1, inf] b compare and set (None, 1) unknown"
