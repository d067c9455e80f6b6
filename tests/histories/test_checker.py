"""Histories made by hand and at random: good ones pass, and each kind of bad one is refused for what is wrong with it."""

import copy
import random
from collections.abc import Callable

import pytest
from tests.histories.checker import check, check_damaged
from tests.histories.history import (
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


def told(watermark: int, start: float, end: float, records: dict[int, str] | None = None, client: str = "r") -> Read:
    """An answer to a reader that began at the first offset."""
    found = records or {}
    return Read(client, "t", found, 0, len(found), start, end, watermark=watermark)


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
    "below the watermark": lambda: history(*TWO, told(2, 10, 11, {0: "a.0", 1: "a.1"})),
    "the watermark goes on": lambda: history(*TWO, told(1, 10, 11, {0: "a.0"}), told(2, 12, 13)),
    "of two answers at once either may be older": lambda: history(*TWO, told(2, 10, 13), told(1, 11, 12)),
    "another reader may be told less": lambda: history(*TWO, told(2, 10, 11), told(1, 12, 13, client="s")),
    "read while it is being sent": lambda: history(stored(0, 0, 5), read({0: "a.0"}, 4.5)),
    "read while nobody knows": lambda: history(Append("a", 0, "t", 5), read({0: "a.0"}, 5.5)),
    "idempotent, in order": lambda: history(*TWO, read({0: "a.0", 1: "a.1"}), a=Resends.ONCE),
    "two producers, each in order": lambda: history(
        *TWO,
        Append("b", 0, "t", 1.5, 9, ACKNOWLEDGED, 2),
        Append("b", 1, "t", 2, 9, ACKNOWLEDGED, 3),
        read({0: "a.0", 1: "a.1", 2: "b.0", 3: "b.1"}),
        a=Resends.ONCE,
        b=Resends.ONCE,
    ),
    "nothing at all": history,
    "a reader that began in the middle": lambda: history(*TWO, read({1: "a.1"}, last=False)),
    "two increments in doubt, one was counted": lambda: history(
        Increment("n", 1), Increment("n", 2), Seen("n", 1, 5, 6)
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
    "above the watermark": (
        "at or above the watermark",
        lambda: history(*TWO, told(1, 10, 11, {0: "a.0", 1: "a.1"})),
    ),
    "the watermark goes back": ("the watermark was 2", lambda: history(*TWO, told(2, 10, 11), told(1, 12, 13))),
    "read before it was sent": ("before it was sent", lambda: history(stored(0, 0, 50), read({0: "a.0"}, 10))),
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


# ── Random histories ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def random_log(choose: random.Random) -> History:
    """Idempotent producers and readers of one partition, as it may go; the last read is of everything."""
    made = History({f"p{number}": Resends.ONCE for number in range(3)})
    log: list[Append] = []
    ahead: dict[str, list[Append]] = {name: [] for name in made.resends}
    now = 0.0
    for name in [choose.choice(list(ahead)) for _ in range(60)]:
        now += choose.random()
        append = Append(name, len([each for each in made.operations if getattr(each, "client", "") == name]), "t", now)
        made.add(append)
        ahead[name].append(append)
        if choose.random() < 0.7:  # what this one sent so far is written, in its order
            for each in ahead[name]:
                each.offset = len(log)
                log.append(each)
                now += choose.random()
                if choose.random() < 0.8:
                    each.outcome, each.end = ACKNOWLEDGED, now
            ahead[name].clear()
        if log and choose.random() < 0.3:
            first, watermark = choose.randrange(len(log)), len(log)
            records = {offset: log[offset].value for offset in range(first, watermark)}
            reader = choose.choice("rs")
            made.add(Read(reader, "t", records, first, watermark, now, now + 0.1, watermark=watermark))
            now += 0.2
    records = {offset: each.value for offset, each in enumerate(log)}
    made.add(Read("last", "t", records, 0, len(log), now + 10, now + 11, last=True, watermark=len(log)))
    for each in log:
        each.offset = each.offset if each.outcome is ACKNOWLEDGED else -1
    return made


def _last(made: History) -> Read:
    page = made.operations[-1]
    assert isinstance(page, Read)
    return page


def _acknowledged(made: History) -> list[Append]:
    return [each for each in made.operations if isinstance(each, Append) and each.outcome is ACKNOWLEDGED]


def lose_an_acknowledged_one(made: History, choose: random.Random) -> None:
    del _last(made).records[choose.choice(_acknowledged(made)).offset]


def cut_the_end(made: History, choose: random.Random) -> None:
    """As a truncation below the watermark does."""
    page, end = _last(made), choose.choice(_acknowledged(made)).offset
    page.records, page.next_offset, page.watermark = {at: page.records[at] for at in range(end)}, end, end


def exchange_two(made: History, choose: random.Random) -> None:
    records = _last(made).records
    offset = choose.randrange(1, len(records))
    records[offset - 1], records[offset] = records[offset], records[offset - 1]


def write_one_twice(made: History, choose: random.Random) -> None:
    page = _last(made)
    page.records[len(page.records)] = choose.choice(list(page.records.values()))


def damage_one(made: History, choose: random.Random) -> None:
    records = _last(made).records
    records[choose.randrange(len(records))] = "p0.x"


def give_an_offset_twice(made: History, choose: random.Random) -> None:
    one, other = choose.sample(_acknowledged(made), 2)
    one.offset = other.offset


def set_the_watermark_back(made: History, choose: random.Random) -> None:
    page = copy.copy(_last(made))
    page.start, page.end = page.start + 10, page.end + 10
    page.watermark = choose.randrange(len(page.records))
    page.records, page.last = {}, False
    made.add(page)


def read_beyond_the_watermark(made: History, choose: random.Random) -> None:
    page = _last(made)
    page.watermark = choose.randrange(len(page.records))


def refuse_what_is_there(made: History, choose: random.Random) -> None:
    choose.choice(_acknowledged(made)).outcome = REFUSED


DEFECTS = [
    lose_an_acknowledged_one,
    cut_the_end,
    exchange_two,
    write_one_twice,
    damage_one,
    give_an_offset_twice,
    set_the_watermark_back,
    read_beyond_the_watermark,
    refuse_what_is_there,
]


@pytest.mark.parametrize("seed", range(20))
def test_a_random_log_passes(seed: int) -> None:
    assert check(random_log(random.Random(seed))) == [], seed


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_random_log_with_one_defect_is_refused(defect: Callable[[History, random.Random], None]) -> None:
    for seed in range(20):
        choose = random.Random(seed)
        made = random_log(choose)
        defect(made, choose)
        assert check(made) != [], seed
