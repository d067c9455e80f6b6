"""Histories made by hand: good ones pass, and each kind of bad one is refused for what is wrong with it."""

from collections.abc import Callable

import pytest
from tests.attack.checker import check, check_damaged
from tests.attack.history import (
    NEVER,
    Append,
    History,
    Increment,
    Lease,
    Looked,
    Operation,
    Outcome,
    Read,
    Resends,
    Seen,
    Transaction,
    Written,
)

ACKNOWLEDGED, REFUSED, UNKNOWN = Outcome.ACKNOWLEDGED, Outcome.REFUSED, Outcome.UNKNOWN


def stored(number: int, offset: int, at: float, client: str = "a", transaction: str | None = None) -> Append:
    return Append(client, number, "t", at, at + 1, ACKNOWLEDGED, offset, transaction)


def read(records: dict[int, str], at: float = 100, *, committed: bool = False, last: bool = True) -> Read:
    return Read("r", "t", records, min(records, default=0), max(records, default=-1) + 1, at, at + 1, committed, last)


def history(*operations: Operation, **resends: Resends) -> History:
    return History(resends, list(operations))


TWO = (stored(0, 0, 1), stored(1, 1, 3))

GOOD: dict[str, Callable[[], History]] = {
    "all there": lambda: history(*TWO, read({0: "a.0", 1: "a.1"})),
    "unknown and there": lambda: history(*TWO, Append("a", 2, "t", 5), read({0: "a.0", 1: "a.1", 2: "a.2"})),
    "unknown and not there": lambda: history(*TWO, Append("a", 2, "t", 5), read({0: "a.0", 1: "a.1"})),
    "refused and not there": lambda: history(*TWO, Append("a", 2, "t", 5, 6, REFUSED), read({0: "a.0", 1: "a.1"})),
    "an unknown one comes late": lambda: history(
        *TWO, Append("a", 2, "t", 4), stored(3, 2, 5), read({0: "a.0", 1: "a.1", 2: "a.3", 3: "a.2"})
    ),
    "sent twice where that may be": lambda: history(
        *TWO, read({0: "a.0", 1: "a.1", 2: "a.1"}), a=Resends.AT_LEAST_ONCE
    ),
    "at the same time, in any order": lambda: history(
        stored(0, 1, 1), stored(0, 0, 1.5, "b"), read({0: "b.0", 1: "a.0"})
    ),
    "a transaction, committed": lambda: history(
        stored(0, 0, 1, transaction="x"),
        Transaction("x", commit=True, start=3, end=4, outcome=ACKNOWLEDGED),
        read({0: "a.0"}, committed=True),
    ),
    "a transaction, aborted": lambda: history(
        stored(0, 0, 1, transaction="x"),
        Transaction("x", commit=False, start=3, end=4, outcome=ACKNOWLEDGED),
        read({}, committed=True),
        read({0: "a.0"}),
    ),
    "a transaction in doubt, not there": lambda: history(
        stored(0, 0, 1, transaction="x"), Transaction("x", commit=True, start=3), read({}, committed=True)
    ),
    "commits in order": lambda: history(
        Written("g", 1, 1, 2, ACKNOWLEDGED), Written("g", 2, 3, 4, ACKNOWLEDGED), Seen("g", 2, 5, 6)
    ),
    "a commit in doubt": lambda: history(Written("g", 1, 1, 2, ACKNOWLEDGED), Written("g", 2, 3), Seen("g", 2, 5, 6)),
    "no commit yet": lambda: history(Written("g", 1, 3), Seen("g", 0, 5, 6)),
    "increments": lambda: history(
        Increment("n", 1, 2, ACKNOWLEDGED, 1),
        Increment("n", 3),
        Increment("n", 5, 6, ACKNOWLEDGED, 3),
        Seen("n", 3, 7, 8),
    ),
    "a key that lives": lambda: history(Lease("k", 10, 1, 2, ACKNOWLEDGED), Looked("k", True, 5, 6)),
    "a key whose time is over": lambda: history(Lease("k", 10, 1, 2, ACKNOWLEDGED), Looked("k", False, 12, 13)),
}

BAD: dict[str, tuple[str, Callable[[], History]]] = {
    "lost": ("does not find it", lambda: history(*TWO, read({0: "a.0"}))),
    "moved": ("was there", lambda: history(*TWO, read({0: "a.0", 1: "b.1", 2: "a.1"}))),
    "an offset given twice": ("was given to", lambda: history(stored(0, 0, 1), stored(1, 0, 3))),
    "an offset reassigned between reads": (
        "was there",
        lambda: history(
            Append("a", 0, "t", 1), Append("a", 1, "t", 1), read({0: "a.0"}, 5, last=False), read({0: "a.1"})
        ),
    ),
    "read and gone": (
        "was read at 1",
        lambda: history(stored(0, 0, 1), Append("a", 1, "t", 3), read({0: "a.0", 1: "a.1"}, 5), read({0: "a.0"})),
    ),
    "invented": ("nobody sent", lambda: history(*TWO, read({0: "a.0", 1: "a.1", 2: "zeros"}))),
    "refused and there": (
        "was refused",
        lambda: history(*TWO, Append("a", 2, "t", 5, 6, REFUSED), read({0: "a.0", 1: "a.1", 2: "a.2"})),
    ),
    "twice, sent once": ("is there twice", lambda: history(*TWO, read({0: "a.0", 1: "a.1", 2: "a.1"}))),
    "twice, from an idempotent producer": (
        "is there twice",
        lambda: history(*TWO, read({0: "a.0", 1: "a.1", 2: "a.1"}), a=Resends.ONCE),
    ),
    "an idempotent producer out of order": (
        "stands before",
        lambda: history(
            Append("a", 0, "t", 1, 9, ACKNOWLEDGED, 1), Append("a", 1, "t", 1, 9, ACKNOWLEDGED, 0), a=Resends.ONCE
        ),
    ),
    "later, and yet before": ("began after", lambda: history(stored(0, 1, 1), stored(1, 0, 3))),
    "holes": ("holes", lambda: history(stored(0, 0, 1), stored(1, 2, 3), read({0: "a.0", 2: "a.1"}))),
    "led past": (
        "led past a.1",
        lambda: history(*TWO, stored(2, 2, 5), read({0: "a.0", 2: "a.2"}, last=False)),
    ),
    "aborted and seen": (
        "which was aborted",
        lambda: history(
            stored(0, 0, 1, transaction="x"),
            Transaction("x", commit=False, start=3, end=4, outcome=ACKNOWLEDGED),
            read({0: "a.0"}, committed=True),
        ),
    ),
    "seen before the commit": (
        "before x was committed",
        lambda: history(
            stored(0, 0, 1, transaction="x"),
            Transaction("x", commit=True, start=30, end=40, outcome=ACKNOWLEDGED),
            read({0: "a.0"}, 10, committed=True, last=False),
        ),
    ),
    "seen, and never ended": (
        "before x was committed",
        lambda: history(
            stored(0, 0, 1, transaction="x"), Transaction("x", commit=True), read({0: "a.0"}, committed=True)
        ),
    ),
    "committed and lost": (
        "x was committed",
        lambda: history(
            stored(0, 0, 1, transaction="x"),
            Transaction("x", commit=True, start=3, end=4, outcome=ACKNOWLEDGED),
            read({}, committed=True),
        ),
    ),
    "half a transaction": (
        "a part of x",
        lambda: history(
            stored(0, 0, 1, transaction="x"),
            stored(1, 1, 2, transaction="x"),
            Transaction("x", commit=True, start=3),
            read({0: "a.0"}, committed=True),
        ),
    ),
    "a commit goes back": (
        "2 was committed, and 1 is seen",
        lambda: history(Written("g", 1, 1, 2, ACKNOWLEDGED), Written("g", 2, 3, 4, ACKNOWLEDGED), Seen("g", 1, 5, 6)),
    ),
    "a commit is forgotten": (
        "1 was committed, and 0 is seen",
        lambda: history(Written("g", 1, 1, 2, ACKNOWLEDGED), Seen("g", 0, 5, 6)),
    ),
    "a commit nobody made": ("7 is seen", lambda: history(Written("g", 1, 1, 2, ACKNOWLEDGED), Seen("g", 7, 5, 6))),
    "a refused commit": (
        "2 is seen",
        lambda: history(Written("g", 1, 1, 2, ACKNOWLEDGED), Written("g", 2, 3, 4, REFUSED), Seen("g", 2, 5, 6)),
    ),
    "an increment lost": (
        "at least 2",
        lambda: history(
            Increment("n", 1, 2, ACKNOWLEDGED, 1), Increment("n", 3, 4, ACKNOWLEDGED, 2), Seen("n", 1, 7, 8)
        ),
    ),
    "an increment counted twice": (
        "at most 2",
        lambda: history(Increment("n", 1, 2, ACKNOWLEDGED, 1), Increment("n", 3, 4, ACKNOWLEDGED, 3)),
    ),
    "one answer for two increments": (
        "two increments",
        lambda: history(Increment("n", 1, 5, ACKNOWLEDGED, 2), Increment("n", 1, 5, ACKNOWLEDGED, 2)),
    ),
    "a key gone early": (
        "10 s to live",
        lambda: history(Lease("k", 10, 1, 2, ACKNOWLEDGED), Looked("k", False, 5, 6)),
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert check(GOOD[name]()) == []


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_refused(name: str) -> None:
    why, made = BAD[name]
    found = check(made())
    assert any(why in each for each in found), found


def test_what_is_in_doubt_has_no_end() -> None:
    assert Append("a", 0, "t", 1).end == NEVER
    assert history(*TWO, Append("a", 2, "t", 5)).count((Append,), UNKNOWN) == 1


def test_a_damaged_copy_tells_the_truth_or_nothing() -> None:
    whole = history(*TWO)
    assert check_damaged(whole, None, 50, reported=False) == []
    assert check_damaged(whole, read({0: "a.0", 1: "a.1"}), 50, reported=False) == []
    assert check_damaged(whole, read({0: "a.0"}), 50, reported=True) == []
    assert check_damaged(whole, read({0: "a.0"}), 3.5, reported=False) == []  # the second came after the copy was made


def test_silent_damage_is_refused() -> None:
    whole = history(*TWO)
    assert "nothing was said" in check_damaged(whole, read({0: "a.0"}), 50, reported=False)[0]
    assert "is read at 1" in check_damaged(whole, read({0: "a.0", 1: "a.0"}), 50, reported=True)[0]
    assert "is read at 0" in check_damaged(whole, read({0: "a~0", 1: "a.1"}), 50, reported=True)[0]
