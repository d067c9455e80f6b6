"""Checkpoints by hand: a state made from one is the state that all of the log makes, whatever changed while it was written."""

import random
from collections.abc import Callable, Iterator

import pytest
from tests.kv.replicated.test_log_keyspace import NODES, SETTINGS, ListLog, One, lost, number, plain

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import HybridClock
from braidlog.kv.engine.operations import Level
from braidlog.kv.replicated.checkpoints import Checkpoint, Part, What, apply, read_record
from braidlog.kv.replicated.log_columns import execute_rows
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.kv.replicated.log_records import Origin
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault

KEYS = [b"key %d" % at for at in range(12)]
SHORT_MS = 400
"""For which gone keys keep their stamps: some are forgotten while a checkpoint is written."""


def state(slot: LogKeyspace) -> object:
    return plain(slot), dict(slot.keyspace.deadlines), slot.stamps, slot.gone, slot.origins, slot.latest_ms, slot.epochs


def applied(log: ListLog, start: int = 0, end: int | None = None) -> LogKeyspace:
    slot = LogKeyspace(HybridClock(NODES[1]), ListLog(), SETTINGS, begins_at=start, delete_retention_ms=SHORT_MS)
    for at in range(start, len(log.rows) if end is None else end):
        apply(slot, at, log.rows[at])
    return slot


def burst(one: One, chance: random.Random) -> None:
    """Changes in columns, gathered as a node does."""
    one.log.is_gathering = True
    kinds = bytes(chance.choice((o.Kind.SET, o.Kind.DELETE, o.Kind.INCREMENT)) for _ in range(chance.randrange(8)))
    columns = o.Columns(
        mutates=True,
        kinds=kinds,
        keys=[chance.choice(KEYS) for _ in kinds],
        values=[b"%d" % chance.randrange(100) for _ in kinds],
    )
    execute_rows(one.slot, columns, [*range(len(kinds))], Level.ONE, one.now_ms, [None] * len(kinds))
    one.log.write_gathered()


def change(one: One, chance: random.Random) -> None:
    key = chance.choice(KEYS)
    changes: tuple[Callable[[], object], ...] = (
        lambda: one.do(o.Set(key, b"%d" % chance.randrange(100), chance.choice((0, 0, 1)))),
        lambda: one.do(o.Delete(key)),
        lambda: one.do(o.Increment(key, chance.randrange(9))),
        lambda: one.do(o.Push(key, o.End.LEFT, (b"x", b"%d" % chance.randrange(9)))),
        lambda: one.do(o.Pop(key, o.End.RIGHT)),
        lambda: one.do(o.HashSet(key, ((b"f%d" % chance.randrange(3), b"1"),))),
        lambda: one.do(o.HashDelete(key, (b"f1",))),
        lambda: one.do(o.Expire(key, 1)),
        lambda: one.take(lost(Op.SET, b"s", at_ms=one.now_ms, key=key, offset=chance.randrange(999))),
        lambda: one.take(lost(Op.DEL, at_ms=one.now_ms, key=key, offset=chance.randrange(999))),
        lambda: one.take(lost(Op.INCRBY, number(1), at_ms=one.now_ms - 5, key=key, offset=chance.randrange(999))),
        lambda: one.slot.expire(one.now_ms, 10),
        lambda: burst(one, chance),
    )
    one.now_ms += chance.randrange(60)
    try:
        chance.choice(changes)()
    except BrokerError as error:
        assert error.reason in (Reason.KEY_NOT_FOUND, Reason.WRONG_TYPE, Reason.NOT_A_NUMBER)  # noqa: PT017 - what else it is, is wrong


@pytest.mark.parametrize("in_columns", [False, True])
def test_a_key_whose_set_is_refused_meanwhile_is_in_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, in_columns: bool
) -> None:
    one = One()
    one.do(o.Set(b"k", b"1"))
    checkpoint = Checkpoint(one.slot)

    def refuse(_: object) -> int:
        raise BrokerError(Reason.NOT_ENOUGH_REPLICAS, "too few")

    with monkeypatch.context() as patch:
        patch.setattr(one.log, "batch" if in_columns else "append", refuse)
        if in_columns:
            columns = o.Columns(mutates=True, kinds=bytes([o.Kind.SET]), keys=[b"k"], values=[b"x" * 70_000])
            assert execute_rows(one.slot, columns, [0], Level.ONE, one.now_ms, [None]) == [0]
        else:
            with pytest.raises(BrokerError):
                one.do(o.Set(b"k", b"2"))
    while checkpoint.write_some():
        pass
    checkpoint.end()
    assert plain(applied(one.log, checkpoint.begin)) == {b"k": b"1"}


def history(seed: int) -> tuple[One, list[int]]:
    """Changes with checkpoints among them; where those begin."""
    chance, one, begins = random.Random(seed), One(), list[int]()
    one.slot.delete_retention_ms = SHORT_MS
    checkpoint: Checkpoint | None = None
    for _ in range(400):
        change(one, chance)
        if chance.random() < 0.3:
            if checkpoint is None:
                checkpoint = Checkpoint(one.slot)
            elif not checkpoint.write_some(chance.choice((1, 100))):
                begins.append(checkpoint.begin)
                checkpoint.end()
                checkpoint = None
    return one, begins


@pytest.mark.parametrize("seed", range(10))
def test_a_log_that_begins_with_a_checkpoint_makes_the_same_state(seed: int) -> None:
    one, begins = history(seed)
    assert len(begins) > 2, seed
    whole = applied(one.log)
    assert state(whole) == state(one.slot), seed
    for begin in begins:
        slot = applied(one.log, begin)
        assert slot.is_complete
        assert state(slot) == state(whole), (seed, begin)
        assert (slot.applied, slot.keyspace.used_bytes) == (whole.applied, whole.keyspace.used_bytes)


def test_keys_are_missing_until_its_end_is_applied() -> None:
    one, (_, begin, *_) = history(1)
    end = next(at for at, row in enumerate(one.log.rows) if at > begin and ends(row, begin))
    assert [applied(one.log, begin, at).is_complete for at in range(begin, end + 1)] == [False] * (end - begin + 1)
    assert state(applied(one.log, begin, end + 1)) == state(applied(one.log, 0, end + 1))


def ends(row: object, begin: int) -> bool:
    return isinstance(row, Part) and row.value[1] == What.END and int.from_bytes(row.value[2:], "big") == begin


def test_a_log_that_begins_without_one_is_a_fault() -> None:
    one = One()
    one.do(o.Set(b"a", b"1"))
    one.do(o.Set(b"a", b"2"))
    with pytest.raises(StorageFault, match="no checkpoint"):
        applied(one.log, 1)


def test_one_that_cannot_be_written_is_given_up_and_the_change_is_made() -> None:
    one = One()
    one.do(o.Increment(b"a"))
    checkpoint = Checkpoint(one.slot)

    def refuse(parts: object) -> int:
        raise BrokerError(Reason.NOT_ENOUGH_REPLICAS, f"too few for {parts}")

    one.slot.append_parts = refuse  # type: ignore[method-assign]
    assert one.do(o.Increment(b"a")) == 2
    assert not checkpoint.is_under_way


def test_the_epochs_before_it_are_remembered_through_the_next() -> None:
    one = One(epoch=1)
    for epoch in (1, 4, 9):
        one.log.epoch = epoch
        one.do(o.Set(b"a", b"1"))
        checkpoint = Checkpoint(one.slot)
        while checkpoint.write_some():
            pass
        checkpoint.end()
        one.log.forget_epochs_before(checkpoint.begin)
    assert [epoch for epoch, _ in one.slot.epochs] == [1, 4, 9]
    assert one.slot.epochs[0] == (1, 0)
    assert applied(one.log).epochs == one.slot.epochs


def damaged(value: bytes) -> Iterator[bytes]:
    yield bytes([2]) + value[1:]
    yield value[:-1]


@pytest.mark.parametrize("what", list(What))
def test_a_damaged_record_is_a_fault(what: What) -> None:
    one = One()
    one.take(lost(Op.SET, b"1", at_ms=1_500))
    checkpoint = Checkpoint(one.slot)
    checkpoint.write_some()
    checkpoint.end()
    at, part = next((at, row) for at, row in enumerate(one.log.rows) if isinstance(row, Part) and row.value[1] == what)
    with pytest.raises(ProtocolError):
        read_record(part.key, bytes([2]) + part.value[1:])
    with pytest.raises(ProtocolError):
        read_record(b"k" if part.key is None else None, part.value)
    slot = applied(one.log, checkpoint.begin, at)
    with pytest.raises(StorageFault):
        apply(slot, at, Part(part.key, part.value[:6]))
    assert Origin(7, 90) in applied(one.log, checkpoint.begin).origins
