"""Salvages mutations that a deposed leader had acknowledged at level ONE, when it truncates them from its log.

It decides which mutations of a tail are kept, and whether one still counts at the new leader.
Does not handle: leadership, transport.

The order: the file becomes durable; the tail is truncated; each mutation is sent to the current leader, in order,
until it is *committed* there, on any path; the file is deleted.
Invariant: a mutation is identified by its origin, the epoch and offset where it was first written. A leader whose
log holds that origin, or that has salvaged it before, does not apply it again, however often it is sent.

| mutation           | counts                                                                                       |
|--------------------|----------------------------------------------------------------------------------------------|
| SET, DEL, EXPIRE   | if it is newer than every change of the key (last write wins)                                |
| INCRBY, pushes     | if it is newer than the key's last SET or DEL                                                |
| HSET               | as INCRBY; for existing fields, only if it is newer than every change of the key             |
| HDEL               | if it is newer than every change of the key                                                  |
| LPOP, RPOP         | never; an element both pushed and popped by one tail is dropped                              |
| EXPIRED, EVICTED   | never: the leader decides itself                                                             |

A mutation is refused if it is older than `delete_retention_ms`, if the leader's log has deleted its origin, or if
its clock is more than a minute ahead: the state that it depends on may have been dropped. Its file is kept.
"""

from collections.abc import Iterable
from enum import Enum, auto

from braidlog.kv.engine.hybrid_clock import DRIFT_MS_MAX
from braidlog.kv.engine.operations import INTEGER_MAX, INTEGER_MIN, Level
from braidlog.kv.engine.values import HashValue, ListValue, Value, pack_pairs, pack_strings, pairs_of, strings_in
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.kv.replicated.log_records import Origin, SlotRecord, changed_at, element_digest, replaced_at
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.limits import KV_COLLECTION_BYTES_MAX, KV_COLLECTION_ITEMS_MAX

_PUSHES = (Op.LPUSH, Op.RPUSH)
_POPS = (Op.LPOP, Op.RPOP)
_LEADERS_OWN = (Op.EXPIRED, Op.EVICTED)
_DIGITS_MAX = 20


class Verdict(Enum):
    """The outcome of a salvaged mutation. The first three are final once everything in the leader's log is
    committed."""

    TAKEN = auto()
    KNOWN = auto()
    """This log holds it, or has salvaged it before."""
    SUPERSEDED = auto()
    """A newer change exists."""
    TOO_OLD = auto()
    CLOCK_AHEAD = auto()

    @property
    def is_final(self) -> bool:
        return self in (Verdict.TAKEN, Verdict.KNOWN, Verdict.SUPERSEDED)


# -- on the node that truncates its log ---------------------------------------------------------------------------


def worth_keeping(tail: Iterable[tuple[Origin, SlotRecord]]) -> list[SlotRecord]:
    """Return the mutations of a tail that were acknowledged at ONE and may count elsewhere. A mutation salvaged
    before keeps its origin, so that it is recognized from every sender."""
    kept: list[SlotRecord] = []
    for origin, record in tail:
        if record.level is not Level.ONE or record.op in _LEADERS_OWN:
            continue
        if record.op in _POPS:
            _take_back(kept, record)
        else:
            kept.append(record._replace(origin=origin_of(origin, record)))
    return kept


def origin_of(here: Origin, record: SlotRecord) -> Origin:
    return record.origin or here


def _take_back(kept: list[SlotRecord], pop: SlotRecord) -> None:
    """Remove a popped element from its push. A push before the last SET or DEL cannot be the element's."""
    for at in range(len(kept) - 1, -1, -1):
        push = kept[at]
        if push.key != pop.key or push.op not in (*_PUSHES, Op.SET, Op.DEL):
            continue
        if push.op not in _PUSHES:
            return
        elements = list(strings_in(push.argument))
        gone = next((i for i, each in enumerate(elements) if element_digest(each) == pop.argument), None)
        if gone is not None:
            del elements[gone]
            kept[at : at + 1] = [push._replace(argument=pack_strings(elements))] if elements else []
            return


# -- at the leader ------------------------------------------------------------------------------------------------


def salvage(slot: LogKeyspace, record: SlotRecord, now_ms: int) -> Verdict:
    """Apply a mutation if it counts. The verdict is valid once everything now in the log is committed."""
    verdict = verdict_on(slot, record, now_ms)
    if verdict is not Verdict.TAKEN:
        return verdict
    argument = effect(slot, record)
    if argument is None:
        return Verdict.SUPERSEDED
    slot.salvage_record(record._replace(argument=argument, level=Level.ONE))
    return Verdict.TAKEN


def verdict_on(slot: LogKeyspace, record: SlotRecord, now_ms: int) -> Verdict:
    """Return the verdict. TAKEN means: if the mutation has an effect."""
    assert record.origin is not None
    held = slot.log.holds(record.origin)
    if held or is_known(slot, record.origin):
        return Verdict.KNOWN
    now_ms = max(now_ms, slot.clock.wall_ms)
    if held is None or record.stamp.wall_ms + slot.delete_retention_ms <= now_ms:
        return Verdict.TOO_OLD
    return Verdict.CLOCK_AHEAD if record.stamp.wall_ms > now_ms + DRIFT_MS_MAX else Verdict.TAKEN


def is_known(slot: LogKeyspace, origin: Origin) -> bool:
    return origin in slot.origins


def is_newest(slot: LogKeyspace, record: SlotRecord) -> bool:
    """Return whether a mutation is newer than every change of its key, including its deletion."""
    known = slot.stamps.get(record.key)
    return known is None or record.stamp.pack() > changed_at(known)


def adds_to(slot: LogKeyspace, record: SlotRecord) -> bool:
    """Return whether a mutation is newer than the last SET or DEL of its key."""
    known = slot.stamps.get(record.key)
    return known is None or record.stamp.pack() > replaced_at(known)


def effect(slot: LogKeyspace, record: SlotRecord) -> bytes | None:
    """Return the argument with which a mutation counts; None if it does not."""
    held = slot.keyspace.data.get(record.key)
    match record.op:
        case Op.SET | Op.DEL:
            return record.argument if is_newest(slot, record) else None
        case Op.EXPIRE:
            return record.argument if held is not None and is_newest(slot, record) else None
        case Op.INCRBY:
            return record.argument if adds_to(slot, record) and _may_add(held, record.argument) else None
        case Op.LPUSH | Op.RPUSH:
            is_list = held is None or isinstance(held, ListValue)
            return record.argument if is_list and adds_to(slot, record) and _fits(held, record.argument) else None
        case Op.HSET | Op.HDEL:
            return _hash_effect(slot, record, held)
    return None


def _may_add(held: Value | None, argument: bytes) -> bool:
    if isinstance(held, bytes):
        is_number = len(held) <= _DIGITS_MAX and held.removeprefix(b"-").isdigit() and b"%d" % int(held) == held
        held = int(held) if is_number else None
        if not is_number:
            return False
    if held is not None and not isinstance(held, int):
        return False
    return INTEGER_MIN <= (held or 0) + int.from_bytes(argument, "big", signed=True) <= INTEGER_MAX


def _fits(held: Value | None, argument: bytes) -> bool:
    if held is None:
        return True
    assert isinstance(held, ListValue | HashValue)
    count = len(held.items if isinstance(held, ListValue) else held.fields) + len(list(strings_in(argument)))
    return held.size + len(argument) <= KV_COLLECTION_BYTES_MAX and count <= KV_COLLECTION_ITEMS_MAX


def _hash_effect(slot: LogKeyspace, record: SlotRecord, held: Value | None) -> bytes | None:
    if held is not None and not isinstance(held, HashValue):
        return None
    there = {} if held is None else held.fields
    newest = is_newest(slot, record)
    strings = list(strings_in(record.argument))
    if record.op is Op.HDEL:
        gone = [field for field in strings if field in there]
        return pack_strings(gone) if gone and newest else None
    fields = [(field, value) for field, value in pairs_of(strings) if newest or field not in there]
    argument = pack_pairs(fields)
    return argument if fields and adds_to(slot, record) and _fits(held, argument) else None
