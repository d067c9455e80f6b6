"""Records that are counted by headers are those that a reader is given: of plain, compacted, transactional and trimmed logs."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.compaction.test_compaction import Setting

from braidlog.codec.batch.header import iter_batches
from braidlog.codec.batch.read_committed import visible
from braidlog.codec.batch.records import decode_batch
from braidlog.model.errors import StorageFault
from braidlog.storage.log.log_reader import Counted
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.state.transaction_index import ranges

KEYS = st.sampled_from([b"a", b"b", b"c", None])
SENT = st.tuples(st.just("send"), st.integers(1, 2), st.lists(KEYS, min_size=1, max_size=3))
ENDED = st.tuples(st.just("end"), st.integers(1, 2), st.booleans())
PUT = st.tuples(st.just("put"), st.lists(KEYS, min_size=1, max_size=5))
UPKEEP = st.one_of(st.tuples(st.just("compact")), st.tuples(st.just("trim"), st.integers(0, 6)))
STEPS = st.lists(st.one_of(PUT, SENT, ENDED, ENDED, UPKEEP), min_size=8, max_size=25)
"""Of two producers, each of which has a transaction open or not; what they leave open stays open."""


def made_of(steps: list[tuple[object, ...]]) -> PartitionLog:
    log = Setting()
    sequences, begun = {1: 0, 2: 0}, set()
    for step in steps:
        match step:
            case ("put", list() as keys):
                log.put(*[(key, b"v") for key in keys])
            case ("send", int() as producer, list() as keys):
                said = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
                log.put(*[(key, b"t") for key in keys], transactional=True, **said)
                sequences[producer] += len(keys)
                begun.add(producer)
            case ("end", int() as producer, bool() as commit) if producer in begun:
                log.end(producer, commit=commit)
                begun.remove(producer)
            case ("compact",):
                log.partition.sync()
                log.compact()
            case ("trim", int() as offset):
                log.partition.advance_start(min(offset, log.partition.last_stable_offset))
            case _:
                pass
    return log.partition


def read(partition: PartitionLog, end: int, *, committed_only: bool) -> list[int]:
    """The offsets that a reader is given, who decodes what he reads."""
    found: list[int] = []
    at = partition.start_offset
    while at < end:
        data = partition.read(at, 200)
        batches = [(data, position, header) for position, header in iter_batches(data)]
        following = batches[-1][2].next_offset
        aborted = ranges(partition.aborted_in(at, following)) if committed_only else []
        for _, position, _ in visible(batches, aborted):
            found += [row[0] for row in decode_batch(data, position, decompressed_bytes_max=2**20)]
        at = following
    return [offset for offset in found if partition.start_offset <= offset < end]


def holes(partition: PartitionLog, offset: int) -> bool:
    """Whether the batch that holds this offset has fewer records than offsets."""
    _, header = next(iter_batches(partition.read(offset, 1)))
    return 0 < header.record_count < header.next_offset - header.base_offset


@given(STEPS, st.booleans(), st.integers(1, 4))
def test_what_is_counted_is_what_is_read(
    steps: list[tuple[object, ...]], committed_only: bool, batches_max: int
) -> None:
    """Of the whole log, from every offset on, and up to every offset."""
    partition = made_of(steps)
    first, limit = partition.start_offset, partition.end_offset
    limit = partition.last_stable_offset if committed_only else limit
    seen = read(partition, limit, committed_only=committed_only)
    edges = [(at, limit) for at in range(first, limit)] + [(first, at) for at in range(first, limit)]
    for start, end in edges:
        records, at = 0, start
        while at < end:
            found = partition.count(at, end, committed_only=committed_only, batches_max=batches_max)
            assert found.next_offset <= end
            if found.next_offset == at:
                assert found.records == 0
                assert holes(partition, at), "only a batch with holes that the range cuts is not counted"
                break
            records, at = records + found.records, found.next_offset
        assert records == bisect_left(seen, at) - bisect_left(seen, start)


def test_damage_is_not_counted() -> None:
    log = Setting()
    for _ in range(3):
        log.put((b"a", bytes(300)))
    log.partition.sync()
    assert log.partition.count(0, 3, committed_only=True, batches_max=9) == Counted(1, 1), "a segment at a time"
    log.disk.flip_bit("/p/00000000000000000001.log", 128 * 8)  # the offset with which its batch begins
    assert log.partition.count(1, 3, committed_only=True, batches_max=9) == Counted(0, 1), "no batch is there"
    with pytest.raises(StorageFault, match="damaged"):
        log.partition.read(1, 100)
    assert log.partition.count(0, 3, committed_only=True, batches_max=9) == Counted(0, 0), "and its reader has said so"
    with pytest.raises(StorageFault, match="damaged"):
        log.partition.count(4, 5, committed_only=True, batches_max=9)
