"""Seeds of simulated slots, bugs planted in them, and the seeds that find these.

python -m tests.simulation.slot_search 1000 [first]     that many seeds; prints what happened how often
python -m tests.simulation.slot_search story 17         one seed, and its story
python -m tests.simulation.slot_search planted [300]    for each planted bug the first seed that finds it
"""

import logging
import sys
from collections import Counter
from collections.abc import Iterable

from tests.kv.replicated import test_log_keyspace
from tests.replication.planted import Patch, RuleBug, planted
from tests.simulation.search import Batch, failure_of, run_each
from tests.simulation.slots import SlotUniverse

from braidlog.kv.engine.hybrid_clock import Stamp
from braidlog.kv.engine.operations import Columns
from braidlog.kv.replicated import salvage
from braidlog.kv.replicated.checkpoints import Checkpoint
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.kv.replicated.log_records import Origin, SlotRecord, changed_at
from braidlog.kv.wal.wal_entries import Op
from braidlog.partition.key_log import KeyLog

SEARCHED_MAX = 300
_take, _keep_tail = LogKeyspace.salvage_record, KeyLog._keep_tail


def _taken_unobserved(self: LogKeyspace, record: SlotRecord) -> None:
    before = self.clock.wall_ms, self.clock.counter
    _take(self, record)
    self.clock.wall_ms, self.clock.counter = before


def _newest_of_what_is_there(slot: LogKeyspace, record: SlotRecord) -> bool:
    known = slot.stamps.get(record.key)
    return known is None or record.key not in slot.keyspace.data or record.stamp.pack() > changed_at(known)


def _unobserved(self: LogKeyspace, stamp: Stamp) -> None:
    """Whatever the log holds."""


def _thrown_away(self: KeyLog, start: int, end: int) -> None:
    """As a log of acks=1."""


def _kept_before_a_cut(self: KeyLog, start: int, end: int) -> None:
    if end == self._partition.log.end_offset:
        _keep_tail(self, start, end)


def _new_origin(here: Origin, record: SlotRecord) -> Origin:
    return here


def _not_written_first(self: Checkpoint, op: Op, key: bytes) -> None:
    """Its turn comes."""


def _rows_not_written_first(self: Checkpoint, columns: Columns, rows: list[int]) -> None:
    """Their turn comes."""


def _found_by_seed() -> None:
    """By no test of its own."""


def _bug(what: str, *patches: Patch) -> RuleBug:
    return RuleBug(what, patches, _found_by_seed)


SLOT_BUGS: dict[int, RuleBug] = {
    44: _bug("ONE tail dropped at truncation", (KeyLog, "_keep_tail", _thrown_away)),
    45: _bug("stamps of salvaged writes not observed", (LogKeyspace, "salvage_record", _taken_unobserved)),
    47: _bug("tombstone resurrected by salvage", (salvage, "is_newest", _newest_of_what_is_there)),
    64: _bug(
        "salvage twice, from the same node and by way of a third",
        (salvage, "is_known", lambda slot, origin: False),
    ),
    65: _bug("stamps of the log not observed", (LogKeyspace, "observe", _unobserved)),
    76: _bug("key changed before it is in the checkpoint", (Checkpoint, "before", _not_written_first)),
    77: _bug("ONE tail dropped where the leader's log begins", (KeyLog, "_keep_tail", _kept_before_a_cut)),
    79: _bug(
        "key changed in columns before it is in the checkpoint", (Checkpoint, "before_rows", _rows_not_written_first)
    ),
}
BY_A_THIRD = RuleBug(
    "salvage twice, by way of a third",
    ((salvage, "origin_of", _new_origin),),
    test_log_keyspace.test_a_mutation_counts_once_from_whomever_it_comes,
)
"""The other half of 64."""


def failure(seed: int) -> str:
    return failure_of(SlotUniverse(seed))


def run_all(seeds: Iterable[int]) -> Batch:
    def run(seed: int) -> tuple[str, Counter[str]]:
        universe = SlotUniverse(seed)
        return failure_of(universe), universe.counts

    return run_each(seeds, run)


def story(seed: int) -> str:
    universe = SlotUniverse(seed, tells=True)
    end = failure_of(universe) or "all promises kept"
    return "\n".join([f"seed {seed}: {universe.mix}", *(universe.story or ()), end])


def first_seed(number: int, seeds: Iterable[int]) -> tuple[int, str] | None:
    with planted(SLOT_BUGS[number]):
        return next(((seed, why) for seed in seeds if (why := failure(seed))), None)


def main(arguments: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    if arguments[:1] == ["story"]:
        print(story(int(arguments[1])))
        return 0
    if arguments[:1] == ["planted"]:
        for number, bug in SLOT_BUGS.items():
            count = int(arguments[1]) if len(arguments) > 1 else SEARCHED_MAX
            found = first_seed(number, range(1, 1 + count))
            print(f"| {number} | {bug.what} | {found and (found[0], found[1][:160])} |", flush=True)
        return 0
    first = int(arguments[1]) if len(arguments) > 1 else 1
    done = run_all(range(first, first + int(arguments[0])))
    for seed, why in done.failed:
        print(f"seed {seed}: {why[:400]}")
    print(", ".join(f"{what}: {times:,}" for what, times in sorted(done.counts.items())))
    print(
        f"{arguments[0]} seeds, {len(done.failed)} failed, {int(arguments[0]) / done.cpu_seconds:.1f} seeds per CPU-s"
    )
    return 1 if done.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
