"""Anti-entropy: compares the Merkle trees of two replicas of a key log, and repairs a follower that differs from its
leader.

Does not handle: clocks, transport, leadership. The caller sets the epoch, starts a comparison every minute and
carries messages, which may be late, lost or duplicated.
Invariants: two trees are compared only as of the same record of the same log. A leaf from the leader is applied
only when the follower has applied exactly as much as the leader had. So a correct follower is never changed, even
during writes.

    follower                                   leader
    SyncRequest(all leaves, digest)      →     SyncOk: equal, done
                                         ←     SyncEnd(NARROWER)            or UNKNOWN: retry at the last mark
    SyncRequest(512 leaves, digest), 32 →     …
    SyncRequest(16 leaves, digest), 32 →      …
    SyncRequest(one leaf, digest)        →     SyncDiff …, SyncEnd(`TOLD`): its keys after `offset`

Both keep the leaves of the last marks: the first record at or after each multiple of `MARK_EVERY`. A log under
constant writes is compared at a mark, an idle log at its end.
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
    """The part of a slot that comparisons use."""

    @property
    def keyspace(self) -> Keyspace: ...

    @property
    def applied(self) -> int: ...

    def stamp_of(self, key: bytes) -> Stamp | None: ...

    def restamp(self, key: bytes, stamp: Stamp | None) -> None:
        """Set when a repaired key was last changed; None: the key does not exist."""
        ...


class Ask(NamedTuple):
    """A question to the leader: do these leaves have this digest after the record before `offset`?"""

    epoch: int
    offset: int
    among: Range
    digest: int


class Same(NamedTuple):
    ask: Ask


class Narrower(NamedTuple):
    """The leaves differ: compare parts of the range."""

    ask: Ask


class Unknown(NamedTuple):
    """The leader has no tree as of that offset."""

    ask: Ask


class KeyState(NamedTuple):
    key: bytes
    kind: int
    value: bytes
    """Kind and value as in a snapshot."""
    deadline_ms: int
    stamp: bytes


class LeafState(NamedTuple):
    """The leaf differs: all its keys on the leader, as of the record before `offset`."""

    ask: Ask
    offset: int
    keys: tuple[KeyState, ...]


Reply = Same | Narrower | Unknown | LeafState


class Repaired(NamedTuple):
    """The repaired keys of a leaf: written because they differed or were missing, and removed."""

    leaf: int
    put: list[bytes]
    removed: list[bytes]


class SlotTree:
    """The tree of one slot on one node, with its leaves at the last marks. `changed` is called by the slot."""

    def __init__(self, slot: SlotState) -> None:
        self.slot = slot
        self.tree = MerkleTree(slot.keyspace, slot.stamp_of)
        self._marks: dict[int, Leaves] = {}
        self.next_mark = _mark_after(slot.applied)

    def changed(self, keys: Iterable[bytes]) -> None:
        """Note the keys changed by the records below `applied`, which is not beyond `next_mark`."""
        self.tree.note(keys)
        if self.slot.applied >= self.next_mark:
            self.next_mark = _mark_after(self.slot.applied)
            self.keep(self.slot.applied, self.tree.leaves())

    def keep(self, offset: int, leaves: Leaves) -> None:
        self._marks[offset] = leaves
        while len(self._marks) > MARKS_MAX:
            del self._marks[min(self._marks)]

    def at(self, offset: int) -> Leaves | None:
        """Return all leaves as of an offset, if they are known."""
        return self.tree.leaves() if offset == self.slot.applied else self._marks.get(offset)

    @property
    def last_mark(self) -> int | None:
        return max(self._marks, default=None)

    def forget(self) -> None:
        """Drop the marks: the log was truncated or keys were repaired, so they no longer match this node's state."""
        self._marks.clear()
        self.next_mark = _mark_after(self.slot.applied)

    # -- at the leader -----------------------------------------------------------------------------------------

    def respond(self, ask: Ask) -> Reply:
        """Return the leader's reply. The caller has checked the epoch."""
        leaves = self.at(ask.offset)
        if leaves is None:
            return Unknown(ask)
        if range_digest(leaves, ask.among) == ask.digest:
            return Same(ask)
        first, following = ask.among
        if following - first > 1:
            self.keep(ask.offset, leaves)  # for the questions about parts of the range
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
    """The follower's side: one slot in one epoch of its leader."""

    def __init__(self, mine: SlotTree, epoch: int) -> None:
        self._mine = mine
        self._epoch = epoch
        self._leaves: Leaves = ()
        self._asked: set[Ask] = set()
        self._received: dict[int, LeafState] = {}
        """Leaf → the leader's state, applied once this replica reaches its offset."""
        self.compared = 0
        """Completed comparisons: equal, or repaired."""
        self.differed = 0

    @property
    def holds_at(self) -> int | None:
        """Return the offset beyond which no record may be applied, because a leaf's state is expected or held; None:
        no limit.

        The caller holds for a few seconds and then gives up.
        """
        if any(ask.among[1] - ask.among[0] == 1 for ask in self._asked):
            return self._mine.slot.applied
        return self.received_at

    @property
    def received_at(self) -> int | None:
        """Return the lowest offset of the held leaf states; None if there are none."""
        return min((told.offset for told in self._received.values()), default=None)

    def give_up(self) -> None:
        """Drop all open questions and leaf states; the next comparison finds the difference again."""
        self._asked.clear()
        self._received.clear()

    def restart(self) -> list[Ask]:
        """Start a new comparison; open questions of the last one are dropped."""
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
        """Handle a reply and return the next questions. A reply to no open question is dropped."""
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
        """Repair the leaves whose states are as of `applied`. Called after each record, and after each reply."""
        applied = self._mine.slot.applied
        ready = [leaf for leaf, told in self._received.items() if told.offset == applied]
        for leaf in [leaf for leaf, told in self._received.items() if told.offset < applied]:
            del self._received[leaf]  # too late; the next comparison finds it again
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
