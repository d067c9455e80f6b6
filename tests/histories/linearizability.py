"""Whether there is an order of the calls of one key that explains every answer: the check of Wing and Gong, with Lowe's memory.

A call takes effect at one moment between its start and its end. One whose outcome is unknown takes effect at any moment after
its start, or never; one that was refused never does. Calls that touch (one ends when the other starts) may have either order.

Cost, ten clients, a key of a thousand calls: about 70 µs of processor time a call, 150 µs when one outcome in fifty is unknown
(1.5 s for the worst of ten such histories). Each unknown outcome that changes the key can double the states from there on, so the
search gives up after STATES_MAX, and says so: that is no verdict.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.histories.history import Action, Call, Outcome, Value

STATES_MAX: Final = 200_000
"""About four seconds."""
SHOWN_MAX: Final = 8


def check_calls(key: str, calls: Sequence[Call]) -> Iterator[str]:
    """What is wrong with the calls of one key."""
    failure = _Search(calls).run()
    if failure:
        yield f"{key}: {failure}"


def perform(value: Value, call: Call) -> tuple[bool, Value]:
    """Whether a call may have met that value, by its answer if that is known; and the value after it."""
    is_known = call.outcome is Outcome.ACKNOWLEDGED
    match call.action:
        case Action.GET:
            return not is_known or call.answer == value, value
        case Action.SET:
            assert not isinstance(call.argument, tuple)
            return True, call.argument
        case Action.DELETE:
            return not is_known or call.answer is (value is not None), None
        case Action.INCREMENT:
            if isinstance(value, str) or not isinstance(call.argument, int):
                return not is_known, value
            total = (value or 0) + call.argument
            return not is_known or call.answer == total, total
        case Action.SWAP:
            assert isinstance(call.argument, tuple)
            expected, new = call.argument
            is_met = value == expected
            return not is_known or call.answer is is_met, new if is_met else value


class _State(NamedTuple):
    """A beginning of an order: all acknowledged calls before `first`, those after it by the bits of `ahead`; and unknown ones."""

    first: int
    ahead: int
    unknown: int
    value: Value


class _Search:
    """Depth first over the beginnings that explain all their answers, each visited once."""

    def __init__(self, calls: Sequence[Call]) -> None:
        by_start = sorted(calls, key=lambda call: call.start)
        self._known = [call for call in by_start if call.outcome is Outcome.ACKNOWLEDGED]
        self._unknown = [call for call in by_start if call.outcome is Outcome.UNKNOWN and call.action is not Action.GET]

    def run(self) -> str:
        """Empty, or why not."""
        first = _State(0, 0, 0, None)
        visited, left, best = {first}, [first], first
        while left:
            state = left.pop()
            if state.first == len(self._known):
                return ""
            if _length(state) > _length(best):
                best = state
            for following in self._following(state):
                if following not in visited:
                    visited.add(following)
                    left.append(following)
            if len(visited) > STATES_MAX:
                return f"undecided after {STATES_MAX} states: too many calls at once, or unknown outcomes"
        return self._explain(best)

    def _following(self, state: _State) -> Iterator[_State]:
        """The one to be tried first comes last."""
        following = list(self._open(state))
        yield from self._following_unknown(state, deadline=min(call.end for _, call in following))
        for index, call in reversed(following):
            fits, value = perform(state.value, call)
            if fits:
                yield self._taken(state, index, value)

    def _open(self, state: _State) -> Iterator[tuple[int, Call]]:
        """Acknowledged calls that have no place yet, up to those that start after one of them has ended."""
        deadline = float("inf")
        for index in range(state.first, len(self._known)):
            call = self._known[index]
            if call.start > deadline:
                return
            if not state.ahead >> (index - state.first) & 1:
                deadline = min(deadline, call.end)
                yield index, call

    def _following_unknown(self, state: _State, deadline: float) -> Iterator[_State]:
        alike = set()
        for index, call in enumerate(self._unknown):
            if call.start > deadline:
                return
            what = (call.action, call.argument)
            if state.unknown >> index & 1 or what in alike:
                continue  # of several that would do the same, the first stands for all
            alike.add(what)
            _, value = perform(state.value, call)
            if value != state.value:
                yield state._replace(unknown=state.unknown | 1 << index, value=value)

    def _taken(self, state: _State, index: int, value: Value) -> _State:
        ahead, first = state.ahead | 1 << (index - state.first), state.first
        while ahead & 1:
            ahead, first = ahead >> 1, first + 1
        return _State(first, ahead, state.unknown, value)

    def _explain(self, best: _State) -> str:
        """The furthest beginning, and what does not fit behind it."""
        stuck = [call for _, call in self._open(best)]
        shown = "; ".join(str(call) for call in stuck[:SHOWN_MAX])
        return f"no order explains its calls: after {_length(best)} of them it is {best.value!r}, and none follows of: {shown}"


def _length(state: _State) -> int:
    return state.first + state.ahead.bit_count()
