"""Replicas of a log of keys compare their trees, and a follower that does not hold what its leader holds is put right.

Knows: what is asked, answered and put in place of what. Refuses to know: clocks, wires, who leads: its owner tells the epoch,
asks every minute, and carries messages, which may be late, lost or come twice.
Invariants: two trees are compared as they were after the same record of the same log, and never else; what a leader tells of a
leaf is put in place when the follower has applied exactly as much as the leader had. So a follower whose keys are right is never
changed, whatever is written meanwhile.

    follower                                   leader
    SyncRequest(all leaves, digest)      →     SyncOk: the same, done
                                         ←     SyncEnd(NARROWER)            or UNKNOWN: asked again at the last mark
    SyncRequest(512 leaves, digest), 32 →     …
    SyncRequest(16 leaves, digest), 32 →      …
    SyncRequest(one leaf, digest)        →     SyncDiff …, SyncEnd(TOLD): its keys after `offset`

Both keep the leaves of the last marks: the first record at or behind each multiple of `MARK_EVERY`. A log that is written to all
the time is compared there, one that rests at its end.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from braidlog.kv.engine.hybrid_clock import Stamp, unpack_stamp
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.values import code_of, read_coded, write_value
from braidlog.kv.replicated.merkle import LEAVES, MerkleTree, Range, leaf_of, narrowed, range_digest
from braidlog.model.errors import ProtocolError

MARK_EVERY: Final = 1024
MARKS_MAX: Final = 8
Leaves = tuple[int, ...]


class SlotState(Protocol):
    """A slot, as far as it is compared."""

    @property
    def keyspace(self) -> Keyspace: ...

    @property
    def applied(self) -> int: ...

    def stamp_of(self, key: bytes) -> Stamp | None: ...

    def restamp(self, key: bytes, stamp: Stamp | None) -> None:
        """The key was put right: this is when it was last changed. None: it is not there."""
        ...


class Ask(NamedTuple):
    """Have these leaves this digest at the leader, after the record before `offset`?"""

    epoch: int
    offset: int
    among: Range
    digest: int


class Same(NamedTuple):
    ask: Ask


class Narrower(NamedTuple):
    """They differ: ask about parts."""

    ask: Ask


class Unknown(NamedTuple):
    """The leader has no tree of that offset."""

    ask: Ask


class KeyState(NamedTuple):
    key: bytes
    kind: int
    value: bytes
    """Both as in a snapshot."""
    deadline_ms: int
    stamp: bytes


class LeafState(NamedTuple):
    """The leaf differs: all of its keys, as the leader has them after the record before `offset`."""

    ask: Ask
    offset: int
    keys: tuple[KeyState, ...]


Reply = Same | Narrower | Unknown | LeafState


class Repaired(NamedTuple):
    """What was put right: keys that were another or missing, and keys that should not have been there."""

    leaf: int
    put: list[bytes]
    removed: list[bytes]


class SlotTree:
    """The tree of one slot on one node, and what it was at the last marks. `changed` is the slot's listener."""

    def __init__(self, slot: SlotState) -> None:
        self.slot = slot
        self.tree = MerkleTree(slot.keyspace, slot.stamp_of)
        self._marks: dict[int, Leaves] = {}
        self.next_mark = _mark_after(slot.applied)

    def changed(self, keys: Iterable[bytes]) -> None:
        """These keys were changed by the records below `applied`, which is not beyond `next_mark`."""
        self.tree.note(keys)
        if self.slot.applied >= self.next_mark:
            self.next_mark = _mark_after(self.slot.applied)
            self.keep(self.slot.applied, self.tree.leaves())

    def keep(self, offset: int, leaves: Leaves) -> None:
        self._marks[offset] = leaves
        while len(self._marks) > MARKS_MAX:
            del self._marks[min(self._marks)]

    def at(self, offset: int) -> Leaves | None:
        """All leaves as they were at an offset, if that is known."""
        return self.tree.leaves() if offset == self.slot.applied else self._marks.get(offset)

    @property
    def last_mark(self) -> int | None:
        return max(self._marks, default=None)

    def forget(self) -> None:
        """The log was cut, or the keys put right: what was before is not what this node has."""
        self._marks.clear()
        self.next_mark = _mark_after(self.slot.applied)

    # -- at the leader -----------------------------------------------------------------------------------------

    def respond(self, ask: Ask) -> Reply:
        """What the leader says. The epoch is its own: its owner refuses any other."""
        leaves = self.at(ask.offset)
        if leaves is None:
            return Unknown(ask)
        if range_digest(leaves, ask.among) == ask.digest:
            return Same(ask)
        first, following = ask.among
        if following - first > 1:
            self.keep(ask.offset, leaves)  # for the questions about parts
            return Narrower(ask)
        return LeafState(ask, self.slot.applied, tuple(map(self._describe, self.tree.keys_in({first}))))

    def _describe(self, key: bytes) -> KeyState:
        value, stamp = self.slot.keyspace.data[key], self.slot.stamp_of(key)
        deadline_ms = self.slot.keyspace.deadlines.get(key, 0)
        packed = bytes(28) if stamp is None else stamp.pack()
        return KeyState(key, code_of(value), write_value(value), deadline_ms, packed)


def _mark_after(offset: int) -> int:
    return (offset // MARK_EVERY + 1) * MARK_EVERY


class Comparison:
    """The follower's side, one slot in one epoch of its leader. Made anew with each epoch."""

    def __init__(self, mine: SlotTree, epoch: int) -> None:
        self._mine = mine
        self._epoch = epoch
        self._leaves: Leaves = ()
        self._asked: set[Ask] = set()
        self._received: dict[int, LeafState] = {}
        """Leaf → what is put in its place once as much is applied."""
        self.compared = 0
        """Comparisons that came to an end: alike, or put right."""
        self.differed = 0

    @property
    def holds_at(self) -> int | None:
        """Apply no record beyond this offset: what is told of a leaf is of then, or later. None: apply what there is.

        Whoever applies gives it a few seconds, and then gives up.
        """
        if any(ask.among[1] - ask.among[0] == 1 for ask in self._asked):
            return self._mine.slot.applied
        return self.received_at

    @property
    def received_at(self) -> int | None:
        """Where the first of what was told of leaves is put in place; None: nothing waits."""
        return min((told.offset for told in self._received.values()), default=None)

    def give_up(self) -> None:
        """Wait for nothing any more; the next comparison finds what is left."""
        self._asked.clear()
        self._received.clear()

    def restart(self) -> list[Ask]:
        """Compare anew: what of the last time is unanswered by now never will be."""
        self.give_up()
        return self._ask_all(self._mine.slot.applied)

    def _ask_all(self, offset: int) -> list[Ask]:
        leaves = self._mine.at(offset)
        if leaves is None:
            return []
        self._leaves = leaves
        return self._ask(offset, [(0, LEAVES)])

    def _ask(self, offset: int, ranges: Iterable[Range]) -> list[Ask]:
        asks = [Ask(self._epoch, offset, each, range_digest(self._leaves, each)) for each in ranges]
        self._asked.update(asks)
        return asks

    def handle_reply(self, reply: Reply) -> list[Ask]:
        """The leader has answered; return what to ask next. Anything but the answer to an open question is dropped."""
        ask = reply.ask
        if ask not in self._asked:
            return []
        self._asked.discard(ask)
        match reply:
            case Same():
                self.compared += ask.among == (0, LEAVES)
            case Narrower():
                self.differed += ask.among == (0, LEAVES)
                return self._ask(ask.offset, narrowed(ask.among))
            case Unknown():
                mark = self._mine.last_mark
                if mark is not None and mark < ask.offset and ask.among == (0, LEAVES):
                    return self._ask_all(mark)
            case LeafState():
                if reply.offset >= self._mine.slot.applied:
                    self._received[ask.among[0]] = reply
        return []

    def due(self) -> list[Repaired]:
        """Put in place what was told of the keys as they are now. Called after each record, and after each reply."""
        applied = self._mine.slot.applied
        ready = [leaf for leaf, told in self._received.items() if told.offset == applied]
        for leaf in [leaf for leaf, told in self._received.items() if told.offset < applied]:
            del self._received[leaf]  # it came too late; the next comparison finds it again
        done = [_repair(self._mine, leaf, self._received.pop(leaf)) for leaf in ready]
        if done:
            self._mine.forget()
            self.compared += not self._received and not self._asked
        return [each for each in done if each.put or each.removed]


def _repair(mine: SlotTree, leaf: int, told: LeafState) -> Repaired:
    keyspace, tree = mine.slot.keyspace, mine.tree
    wanted = {
        each.key: (read_coded(each.kind, each.value), each.value, each.deadline_ms, unpack_stamp(each.stamp))
        for each in told.keys
    }
    if any(leaf_of(key) != leaf for key in wanted):
        raise ProtocolError(f"a key that is not of leaf {leaf}")
    removed = [key for key in tree.keys_in({leaf}) if key not in wanted]
    put = []
    for key in removed:
        keyspace.remove(key)
        mine.slot.restamp(key, None)
        tree.note((key,))
    for key, (value, written, deadline_ms, stamp) in wanted.items():
        held = keyspace.data.get(key)
        is_same = held is not None and (type(held), write_value(held)) == (type(value), written)
        if not is_same or keyspace.deadlines.get(key, 0) != deadline_ms or mine.slot.stamp_of(key) != stamp:
            if held is not None:
                keyspace.remove(key)
            keyspace.put(key, value, deadline_ms)
            mine.slot.restamp(key, stamp)
            tree.note((key,))
            put.append(key)
    return Repaired(leaf, put, removed)
