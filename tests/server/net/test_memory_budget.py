"""The budget of memory: who is let go, who waits, and that nothing is counted for ever."""

import random

from braidlog.server.net.memory_budget import SMALL_BYTES, Budget

MEBI = 1024 * 1024


class Holder:
    def __init__(self, budget: Budget, name: str) -> None:
        self._budget = budget
        self.peer = name
        self.held = 0
        self.is_aborted = False
        self.told = 0

    def held_bytes(self) -> int:
        return self.held

    def abort(self) -> None:
        self.is_aborted = True

    def room_again(self) -> None:
        self.told += 1

    def hold(self, held: int) -> None:
        self.held = held
        self._budget.note(self, held)


def budget(bytes_max: int = 10 * MEBI) -> Budget:
    return Budget(bytes_max, lambda: 0.0)


def test_the_largest_is_let_go_and_the_small_stay() -> None:
    shared = budget()
    small = [Holder(shared, f"small {n}") for n in range(100)]
    for holder in small:
        holder.hold(SMALL_BYTES)
    good, large, larger = Holder(shared, "good"), Holder(shared, "large"), Holder(shared, "larger")
    good.hold(MEBI)
    large.hold(4 * MEBI)
    larger.hold(6 * MEBI)
    assert larger.is_aborted
    assert not large.is_aborted
    assert not good.is_aborted
    assert not any(holder.is_aborted for holder in small)
    assert shared.let_go == 1


def test_nobody_goes_for_what_was_held_before() -> None:
    """Answers leave without anyone saying so: who begins something meanwhile finds the old sum."""
    shared = budget()
    served, next_one = Holder(shared, "served"), Holder(shared, "next")
    served.hold(7 * MEBI)
    served.held = MEBI
    next_one.hold(4 * MEBI)
    assert not served.is_aborted
    assert not next_one.is_aborted
    assert shared.bytes_held == 5 * MEBI


def test_what_the_node_keeps_leaves_less_for_connections() -> None:
    shared = budget()
    small, large = Holder(shared, "small"), Holder(shared, "large")
    small.hold(MEBI)
    large.hold(6 * MEBI)
    assert not large.is_aborted
    shared.reserve(5 * MEBI)
    assert large.is_aborted
    assert not small.is_aborted
    shared.forget(large)
    assert not shared.is_full
    shared.reserve(0)
    small.hold(8 * MEBI)
    assert not small.is_aborted


def test_who_leaves_counts_until_it_is_gone() -> None:
    """Then those who waited are told."""
    shared = budget()
    large, waiting = Holder(shared, "large"), Holder(shared, "waiting")
    large.hold(11 * MEBI)
    assert large.is_aborted
    assert shared.is_full
    shared.wait(waiting)
    large.hold(0)  # what it says now changes nothing
    assert shared.is_full
    assert waiting.told == 0
    shared.forget(large)
    assert not shared.is_full
    assert shared.bytes_held == 0
    assert waiting.told == 1


def test_what_left_without_a_word_is_counted_anew() -> None:
    shared = budget()
    holders = [Holder(shared, f"{n}") for n in range(9)]
    for holder in holders:
        holder.hold(MEBI)
        holder.held = 0  # its answers were taken meanwhile
    waiting = Holder(shared, "waiting")
    shared.bytes_held += MEBI
    assert shared.is_full
    shared.wait(waiting)
    shared.settle()
    assert not shared.is_full
    assert waiting.told == 1
    assert not any(holder.is_aborted for holder in holders)


def test_whoever_gives_back_lets_others_go_on() -> None:
    shared = budget()
    first, second, waiting = Holder(shared, "1"), Holder(shared, "2"), Holder(shared, "waiting")
    first.hold(6 * MEBI)
    second.hold(5 * MEBI)
    assert first.is_aborted
    shared.wait(waiting)
    second.hold(0)
    assert waiting.told == (0 if shared.is_full else 1)
    shared.forget(first)
    assert waiting.told == 1


def test_the_account_is_right_whatever_happens() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    shared = budget()
    holders = [Holder(shared, f"{n}") for n in range(30)]
    for _ in range(5000):
        holder = rng.choice(holders)
        match rng.randrange(6):
            case 0:
                holders.remove(holder)
                shared.forget(holder)
                holders.append(Holder(shared, "new"))
            case 1:
                shared.wait(holder)
            case 2:
                shared.settle()
            case _ if not holder.is_aborted:
                holder.hold(rng.choice([0, 10, SMALL_BYTES + 1, MEBI, 3 * MEBI, 20 * MEBI]))
        staying = sum(each.held for each in holders if not each.is_aborted and each.held > SMALL_BYTES)
        assert staying <= shared.bytes_max
        assert shared.bytes_held == sum(each.held for each in holders if each.held > SMALL_BYTES)
    for holder in holders:
        shared.forget(holder)
    assert shared.bytes_held == 0
