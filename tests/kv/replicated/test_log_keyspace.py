"""A slot by hand: a log in a list, a leader, followers that apply it; salvage by its rules; tails on a disk that crashes."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from braidlog.codec.batch.records import decode_batch
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import DRIFT_MS_MAX, HybridClock, Stamp
from braidlog.kv.engine.operations import Level
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.values import HashValue, ListValue, pack_pairs, pack_strings
from braidlog.kv.replicated import salvage
from braidlog.kv.replicated.checkpoints import Part, read_record
from braidlog.kv.replicated.log_columns import BATCH_BYTES_MAX
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.kv.replicated.log_records import Origin, RecordBatch, SlotRecord, unpack_record
from braidlog.kv.replicated.salvage import Verdict, worth_keeping
from braidlog.kv.replicated.salvage_files import SUFFIX, forget_tail, keep_tail, kept_tails
from braidlog.kv.replicated.slots import KEY_LOGS, SLOTS, log_of, placements, slot_of, slots_in
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.testing.disk import SimulatedDisk

SETTINGS = KeyValueSettings(memory_bytes_max=0, feed=False)
NODES = (b"node-of-16-bytes", b"second-16-bytes!")
DAY_MS = 24 * 3600 * 1000


class ListLog:
    """Every record passes its bytes."""

    def __init__(self, epoch: int = 1) -> None:
        self.rows: list[SlotRecord | Part] = []
        self._epochs: list[int] = []
        self._known_epochs_from = 0
        self.epoch = epoch
        self.start = 0
        self.is_gathering = False
        self.gathered: RecordBatch | None = None

    @property
    def records(self) -> list[SlotRecord]:
        return [each for each in self.rows if isinstance(each, SlotRecord)]

    def append(self, record: SlotRecord) -> int:
        return self.append_parts([(record.key, record.pack())])

    def append_parts(self, parts: Sequence[tuple[bytes | None, bytes]]) -> int:
        if self.is_gathering:
            for key, value in parts:
                self.batch(1).append(key, value)
            return len(self.rows) + self.batch(1).count
        return self._write(parts)

    def _write(self, parts: Sequence[tuple[bytes | None, bytes]]) -> int:
        self.rows += [read_record(*each) for each in parts]
        self._epochs += [self.epoch] * len(parts)
        return len(self.rows)

    def batch(self, wall_ms: int) -> RecordBatch:
        """Return a batch with room in it, as the port promises."""
        if self.gathered is not None and len(self.gathered.section) >= BATCH_BYTES_MAX:
            self._write_batch()
        self.gathered = self.gathered or RecordBatch(wall_ms)
        return self.gathered

    def write_gathered(self) -> None:
        self.is_gathering = False
        self._write_batch()

    def _write_batch(self) -> None:
        gathered, self.gathered = self.gathered, None
        if gathered is not None and gathered.count:
            data = gathered.seal().data
            rows = decode_batch(data, decompressed_bytes_max=1 << 24)
            self._write([(key, value or b"") for _, _, key, value, _ in rows])

    def holds(self, origin: Origin) -> bool | None:
        if origin.offset < self.start:
            return None
        return origin.offset < len(self._epochs) and self._epochs[origin.offset] == origin.epoch

    def epochs(self) -> list[tuple[int, int]]:
        at = self._known_epochs_from
        return list({epoch: (epoch, at + index) for index, epoch in reversed([*enumerate(self._epochs[at:])])}.values())

    def forget_epochs_before(self, offset: int) -> None:
        self._known_epochs_from = offset

    def tail(self, start: int = 0) -> Iterator[tuple[Origin, SlotRecord]]:
        for at, row in enumerate(self.rows[start:], start):
            if isinstance(row, SlotRecord):
                yield Origin(self._epochs[at], at), row


class One:
    """A slot that leads, with its own log."""

    def __init__(self, node: int = 0, epoch: int = 1, now_ms: int = 1_000) -> None:
        self.log = ListLog(epoch)
        self.slot = LogKeyspace(HybridClock(NODES[node]), self.log, SETTINGS)
        self.now_ms = now_ms

    def do(self, operation: o.Operation[Any], level: Level = Level.QUORUM) -> object:
        self.now_ms += 1
        return self.slot.execute(operation, level, self.now_ms)

    def take(self, record: SlotRecord) -> Verdict:
        return salvage.salvage(self.slot, record, self.now_ms)


def plain(slot: LogKeyspace) -> dict[bytes, object]:
    return {
        key: list(value.items)
        if isinstance(value, ListValue)
        else dict(value.fields)
        if isinstance(value, HashValue)
        else value
        for key, value in slot.keyspace.data.items()
    }


def state(slot: LogKeyspace) -> object:
    return plain(slot), slot.keyspace.deadlines, slot.stamps, slot.origins, slot.applied


def replayed(log: ListLog) -> LogKeyspace:
    slot = LogKeyspace(HybridClock(NODES[1]), ListLog(), SETTINGS)
    for origin, record in log.tail():
        slot.apply(origin.offset, record)
    return slot


def lost(op: Op, argument: bytes = b"", *, at_ms: int, key: bytes = b"k", offset: int = 90, ttl: int = 0) -> SlotRecord:
    """A mutation that another node had acknowledged at ONE in epoch 7, and cut."""
    return SlotRecord(op, key, argument, ttl, Level.ONE, Stamp(at_ms, 0, NODES[1]), Origin(7, offset))


def number(amount: int) -> bytes:
    return amount.to_bytes(8, "big", signed=True)


# -- one log, one state --------------------------------------------------------------------------------------------


def test_whoever_applies_the_log_has_the_leaders_state() -> None:
    one = One()
    one.do(o.Set(b"a", b"1", 5), Level.ONE)
    one.do(o.Increment(b"n", 5))
    one.do(o.Push(b"l", o.End.LEFT, (b"x", b"y", b"z")), Level.ALL)
    one.do(o.Pop(b"l", o.End.RIGHT))
    one.do(o.HashSet(b"h", ((b"f", b"1"), (b"g", b"2"))))
    one.do(o.HashDelete(b"h", (b"f",)))
    one.do(o.Delete(b"a"))
    one.take(lost(Op.SET, b"salvaged", at_ms=2_000, key=b"s"))
    assert plain(one.slot) == {b"n": 5, b"l": [b"z", b"y"], b"h": {b"g": b"2"}, b"s": b"salvaged"}
    assert state(replayed(one.log)) == state(one.slot)
    assert [each.level for each in one.log.records[:3]] == [Level.ONE, Level.QUORUM, Level.ALL]
    assert one.log.records[-1].origin == Origin(7, 90)


def test_a_new_leader_gives_stamps_after_all_that_it_applied_however_slow_its_clock_is() -> None:
    one = One(now_ms=1_000_000)
    one.do(o.Set(b"a", b"1"))
    other = replayed(one.log)
    other.execute(o.Set(b"a", b"2"), Level.QUORUM, 5)
    (last,) = other.log.records  # type: ignore[attr-defined]
    assert last.stamp > one.log.records[-1].stamp


def test_a_key_goes_by_a_record_and_by_no_clock() -> None:
    one = One()
    one.do(o.Set(b"a", b"1", 1))
    follower = replayed(one.log)
    assert follower.read(o.Get(b"a"), 10**15) == b"1"
    assert follower.read(o.TimeToLive(b"a"), 10**15) == 1
    assert follower.read(o.Exists(b"a"), 10**15)
    one.now_ms += 1_001
    with pytest.raises(BrokerError) as refused:
        one.do(o.Get(b"a"))
    assert refused.value.reason is Reason.KEY_NOT_FOUND
    assert one.log.records[-1].op is Op.EXPIRED
    follower.apply(1, one.log.records[1])
    assert not follower.read(o.Exists(b"a"), 0)


def test_a_refused_record_changes_nothing() -> None:
    one = One()
    one.do(o.Set(b"a", b"1"))

    def refuse(record: SlotRecord) -> int:
        raise BrokerError(Reason.NOT_ENOUGH_REPLICAS, "too few")

    before = state(one.slot)
    one.log.append = refuse  # type: ignore[method-assign]
    with pytest.raises(BrokerError):
        one.do(o.Set(b"a", b"2"))
    assert state(one.slot) == before


class Heard:
    """A `KeyListener`."""

    next_mark = sys.maxsize

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def changed(self, keys: Iterable[bytes]) -> None:
        self.keys += keys


def test_listeners_hear_of_every_key_that_changes() -> None:
    one, heard = One(), Heard()
    one.slot.listeners.append(heard)
    one.do(o.Set(b"a", b"1"))
    one.do(o.Delete(b"a"))
    one.take(lost(Op.SET, b"1", at_ms=5_000))
    assert heard.keys == [b"a", b"a", b"k"]


@pytest.mark.parametrize("cut", range(48))
def test_a_damaged_record_is_a_protocol_error(cut: int) -> None:
    value = lost(Op.SET, b"", at_ms=1).pack()
    assert len(value) == 48
    with pytest.raises(ProtocolError):
        unpack_record(b"k", value[:cut])
    with pytest.raises(ProtocolError):
        unpack_record(b"", value)


# -- what is worth keeping of a tail ---------------------------------------------------------------------------------


def test_only_what_was_acknowledged_at_one_is_kept_with_its_origin() -> None:
    one = One(epoch=4)
    one.do(o.Set(b"a", b"1"), Level.QUORUM)
    one.do(o.Set(b"b", b"2"), Level.ONE)
    one.take(lost(Op.SET, b"3", at_ms=3_000))
    kept = worth_keeping(one.log.tail())
    assert [(each.key, each.origin) for each in kept] == [(b"b", Origin(4, 1)), (b"k", Origin(7, 90))]


def test_what_one_tail_both_pushed_and_popped_does_neither() -> None:
    one = One()
    one.do(o.Push(b"l", o.End.LEFT, (b"a", b"b")), Level.ONE)
    one.do(o.Push(b"l", o.End.LEFT, (b"c",)), Level.ONE)
    assert one.do(o.Pop(b"l", o.End.RIGHT), Level.ONE) == b"a"
    assert one.do(o.Pop(b"l", o.End.LEFT), Level.ONE) == b"c"
    (kept,) = worth_keeping(one.log.tail())
    assert (kept.op, kept.argument) == (Op.LPUSH, pack_strings([b"b"]))


def test_a_pop_of_what_was_there_before_is_not_repeated() -> None:
    one = One()
    one.do(o.Push(b"l", o.End.RIGHT, (b"old", b"older")))
    one.do(o.Push(b"l", o.End.RIGHT, (b"new",)), Level.ONE)
    assert one.do(o.Pop(b"l", o.End.LEFT), Level.ONE) == b"old"
    (kept,) = worth_keeping(one.log.tail(1))
    assert kept.argument == pack_strings([b"new"])


# -- what counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at_ms", "verdict"), [(500, Verdict.SUPERSEDED), (5_000, Verdict.TAKEN)])
def test_the_last_write_wins(at_ms: int, verdict: Verdict) -> None:
    one = One()
    one.do(o.Set(b"k", b"here"))
    assert one.take(lost(Op.SET, b"there", at_ms=at_ms)) is verdict
    assert plain(one.slot) == {b"k": b"here" if verdict is Verdict.SUPERSEDED else b"there"}


def test_a_deleted_key_does_not_come_back_by_an_older_write() -> None:
    one = One()
    one.do(o.Set(b"k", b"1"))
    one.do(o.Delete(b"k"))
    for op, argument in ((Op.SET, b"2"), (Op.INCRBY, number(1)), (Op.RPUSH, pack_strings([b"x"]))):
        assert one.take(lost(op, argument, at_ms=500)) is Verdict.SUPERSEDED
    assert plain(one.slot) == {}


def test_two_cut_tails_in_any_order_end_the_same() -> None:
    """One node's SET, another's later DEL, of a key that the leader never had."""
    ends = []
    for order in ((0, 1), (1, 0)):
        one = One()
        both = lost(Op.SET, b"1", at_ms=2_000, offset=1), lost(Op.DEL, at_ms=3_000, offset=2)
        for at in order:
            one.take(both[at])
        assert state(replayed(one.log)) == state(one.slot)
        ends.append(plain(one.slot))
    assert ends == [{}, {}]


def test_increments_and_pushes_are_added_to_what_was_counted_and_pushed_since() -> None:
    one = One()
    one.do(o.Set(b"k", b"10"))
    one.do(o.Increment(b"k", 1))
    one.do(o.Push(b"l", o.End.RIGHT, (b"b",)))
    after_ms = one.now_ms - 1
    one.do(o.Increment(b"k", 1))
    assert one.take(lost(Op.INCRBY, number(5), at_ms=after_ms)) is Verdict.TAKEN
    assert one.take(lost(Op.LPUSH, pack_strings([b"a"]), at_ms=after_ms, key=b"l", offset=91)) is Verdict.TAKEN
    assert plain(one.slot) == {b"k": 17, b"l": [b"a", b"b"]}
    assert one.take(lost(Op.SET, b"0", at_ms=after_ms, offset=92)) is Verdict.SUPERSEDED, "an increment would be lost"


def test_a_list_that_was_popped_empty_still_takes_what_was_pushed_elsewhere() -> None:
    one = One()
    one.do(o.Push(b"l", o.End.RIGHT, (b"a",)))
    one.do(o.Pop(b"l", o.End.LEFT))
    assert one.take(lost(Op.RPUSH, pack_strings([b"b"]), at_ms=900, key=b"l")) is Verdict.TAKEN
    assert plain(one.slot) == {b"l": [b"b"]}


def test_fields_that_were_set_since_stay() -> None:
    one = One()
    one.do(o.HashSet(b"h", ((b"f", b"here"),)))
    fields = pack_pairs([(b"f", b"there"), (b"g", b"there")])
    assert one.take(lost(Op.HSET, fields, at_ms=900, key=b"h")) is Verdict.TAKEN
    assert plain(one.slot) == {b"h": {b"f": b"here", b"g": b"there"}}
    assert one.take(lost(Op.HDEL, pack_strings([b"f"]), at_ms=900, key=b"h", offset=91)) is Verdict.SUPERSEDED
    assert one.take(lost(Op.HSET, fields, at_ms=9_000, key=b"h", offset=92)) is Verdict.TAKEN
    assert plain(one.slot) == {b"h": {b"f": b"there", b"g": b"there"}}


@pytest.mark.parametrize(
    ("held", "op", "argument"),
    [
        (o.Set(b"k", b"text"), Op.INCRBY, number(1)),
        (o.Set(b"k", b"007"), Op.INCRBY, number(1)),
        (o.Set(b"k", b"9223372036854775807"), Op.INCRBY, number(1)),
        (o.Push(b"k", o.End.LEFT, (b"x",)), Op.INCRBY, number(1)),
        (o.Set(b"k", b"text"), Op.LPUSH, pack_strings([b"x"])),
        (o.Set(b"k", b"text"), Op.HSET, pack_pairs([(b"f", b"v")])),
        (o.Set(b"other", b"text"), Op.EXPIRE, b""),
        (o.Set(b"k", b"text"), Op.LPOP, b"digest.."),
    ],
)
def test_what_makes_no_sense_here_does_not_count(held: o.Operation[Any], op: Op, argument: bytes) -> None:
    one = One()
    one.do(held)
    before = plain(one.slot)
    assert one.take(lost(op, argument, at_ms=5_000, ttl=1 if op is Op.EXPIRE else 0)) is Verdict.SUPERSEDED
    assert plain(one.slot) == before


def test_a_mutation_counts_once_from_whomever_it_comes() -> None:
    one = One()
    push = lost(Op.RPUSH, pack_strings([b"a"]), at_ms=2_000)
    assert one.take(push) is Verdict.TAKEN
    assert one.take(push) is Verdict.KNOWN
    third = One(node=1, epoch=8)
    assert third.take(push) is Verdict.TAKEN
    (again,) = worth_keeping(third.log.tail())
    assert one.take(again) is Verdict.KNOWN
    assert plain(one.slot) == {b"k": [b"a"]}


def test_a_log_that_holds_the_mutation_itself_does_not_take_it() -> None:
    one = One(epoch=7)
    one.do(o.Increment(b"k", 1), Level.ONE)
    (kept,) = worth_keeping(one.log.tail())
    assert one.take(kept) is Verdict.KNOWN
    assert one.take(kept._replace(origin=Origin(6, 0), stamp=Stamp(9_000, 0, NODES[1]))) is Verdict.TAKEN
    assert plain(one.slot) == {b"k": 2}


def test_what_is_too_old_or_too_far_ahead_is_left_in_its_file() -> None:
    one = One(now_ms=2 * DAY_MS)
    assert one.take(lost(Op.SET, b"1", at_ms=DAY_MS - 10)) is Verdict.TOO_OLD
    assert one.take(lost(Op.SET, b"1", at_ms=2 * DAY_MS + DRIFT_MS_MAX + 1)) is Verdict.CLOCK_AHEAD
    one.log.start = 91
    assert one.take(lost(Op.SET, b"1", at_ms=2 * DAY_MS)) is Verdict.TOO_OLD
    assert one.log.records == []
    assert not any(verdict.is_final for verdict in (Verdict.TOO_OLD, Verdict.CLOCK_AHEAD))


def test_what_is_forgotten_is_refused_from_then_on() -> None:
    """Stamps of deleted keys and origins go by the log's own time; nothing as old as they are is taken any more."""
    one = One()
    one.do(o.Set(b"k", b"1"))
    one.do(o.Delete(b"k"))
    push = lost(Op.RPUSH, pack_strings([b"a"]), at_ms=2_000, key=b"l")
    one.take(push)
    one.now_ms = DAY_MS + 3_000
    one.do(o.Set(b"other", b"1"))
    assert one.slot.stamp_of(b"k") is None
    assert one.slot.origins == {}
    assert one.take(push) is Verdict.TOO_OLD
    assert one.take(lost(Op.SET, b"2", at_ms=500)) is Verdict.TOO_OLD
    assert state(replayed(one.log)) == state(one.slot)


# -- the files of cut tails ------------------------------------------------------------------------------------------


def test_a_kept_tail_survives_every_crash_after_it_was_kept() -> None:
    disk = SimulatedDisk()
    records = [lost(Op.SET, b"1", at_ms=5), lost(Op.INCRBY, number(1), at_ms=6, key=b"n", offset=91)]
    path = keep_tail(disk, "/tails", 3, records)
    assert keep_tail(disk, "/tails", 3, records) != path, "cut again, after a crash between"
    for _, after in disk.crash_states(limit=50):
        tails = kept_tails(after, "/tails")
        assert [(tail.log, tail.records) for tail in tails] == [(3, records)] * 2
    for tail in kept_tails(disk, "/tails"):
        forget_tail(disk, tail)
    assert kept_tails(disk, "/tails") == []


def test_a_kept_tail_takes_no_others_place() -> None:
    disk = SimulatedDisk()
    records = [[lost(Op.SET, value, at_ms=5)] for value in (b"1", b"2", b"3")]
    keep_tail(disk, "/tails", 3, records[0])
    keep_tail(disk, "/tails", 3, records[1])
    forget_tail(disk, kept_tails(disk, "/tails")[0])
    keep_tail(disk, "/tails", 3, records[2])
    assert [tail.records for tail in kept_tails(disk, "/tails")] == records[1:]


def test_a_tail_that_was_not_finished_goes_and_a_damaged_one_is_said_to_be() -> None:
    disk = SimulatedDisk()
    path = keep_tail(disk, "/tails", 3, [lost(Op.SET, b"1", at_ms=5)])
    disk.rename(path, path + ".new")
    assert kept_tails(disk, "/tails") == []
    assert disk.names("/tails") == []
    path = keep_tail(disk, "/tails", 3, [lost(Op.SET, b"1", at_ms=5)])
    assert path.endswith(SUFFIX)
    disk.flip_bit(path, 40 * 8)
    with pytest.raises(StorageFault, match="checksum"):
        kept_tails(disk, "/tails")


# -- where slots are -------------------------------------------------------------------------------------------------


def test_a_keys_slot_is_for_ever() -> None:
    assert [slot_of(key) for key in (b"", b"a", b"key", b"\xff" * 8)] == VECTORS
    counts = [0] * SLOTS
    for at in range(20_000):
        counts[slot_of(b"key-%d" % at)] += 1
    assert min(counts) > 80


VECTORS = [0, 48, 109, 71]


@pytest.mark.parametrize("logs", [KEY_LOGS, 3, 100])
def test_slots_are_divided_evenly_among_logs(logs: int) -> None:
    counts = Counter(log_of(slot, logs) for slot in range(SLOTS))
    assert [*counts] == [*range(logs)]
    assert counts == {log: slots_in(log, logs) for log in range(logs)}
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("nodes", range(1, 13))
def test_each_node_leads_its_share_of_the_logs(nodes: int) -> None:
    placed = placements(KEY_LOGS, range(1, nodes + 1), 3)
    assert all(len(set(each)) == len(each) == min(3, nodes) for each in placed)
    leads, holds = (Counter(dict.fromkeys(range(1, nodes + 1), 0)) for _ in range(2))
    leads.update(each[0] for each in placed)
    holds.update(node for each in placed for node in each)
    assert max(leads.values()) - min(leads.values()) <= 1
    assert max(holds.values()) <= len(placed[0]) * KEY_LOGS // nodes + 2


@pytest.mark.parametrize("nodes", range(3, 13))
def test_a_node_that_is_added_takes_its_share_and_little_else_is_copied(nodes: int) -> None:
    before, after = (placements(KEY_LOGS, range(1, count + 1), 3) for count in (nodes, nodes + 1))
    copied = sum(len({*now} - {*old}) for old, now in zip(before, after, strict=True))
    assert copied <= 3 * KEY_LOGS // (nodes + 1) + 4
