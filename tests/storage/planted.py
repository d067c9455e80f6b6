"""Bugs planted on purpose: each replaces one rule that replicas ask of the log by a wrong one, in a test and nowhere else.

The numbers are those of the table in `docs/guides/durability.md`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest import mock

from tests.broker.node import Node
from tests.coordinator import test_event_streams
from tests.storage import test_replicated
from tests.storage.crashing import Campaign, Runtime

from braidlog.codec.batch.header import BatchHeader
from braidlog.coordinator import event_streams
from braidlog.storage.compaction import compaction, compaction_merge, retention
from braidlog.storage.log import follower_append
from braidlog.storage.log.partition_log import PartitionLog, Writer
from braidlog.storage.recovery import recovery
from braidlog.storage.recovery.recovery import Recovered
from braidlog.storage.state.partition_state import EpochHistory

Patch = tuple[object, str, object]


class Bug(NamedTuple):
    what: str
    patches: tuple[Patch, ...]
    killer: Callable[[], None]


def _begin_in_memory(writer: Writer, headers: Sequence[BatchHeader]) -> None:
    history = EpochHistory(writer._state.epochs.entries())
    for header in headers:
        history.start_epoch(header.leader_epoch, header.base_offset)
    writer._state.epochs = history


_adopt = PartitionLog._adopt


def _adopt_with_old_producers(log: PartitionLog, recovered: Recovered) -> None:
    before = getattr(log, "_state", None)
    _adopt(log, recovered)
    if before is not None:
        log._state.producers = before.producers


def _two_epochs(runtime: Runtime) -> None:
    runtime.open()
    runtime.create("t")
    for epoch in (1, 2):
        runtime.at("t")[1].epoch = epoch
        runtime.append("t", replicated=True)


def _every_crash_around_an_epochs_first_batch() -> None:
    Campaign().run(_two_epochs)


def _streams_node() -> Node:
    node = Node()
    node.create("s", 3)
    return node


def _never(*_: object) -> bool:
    return False


BUGS: dict[int, Bug] = {
    5: Bug(
        "watermark = end at opening",
        ((recovery, "opened_watermark", lambda kept, end: end),),
        test_replicated.test_an_opening_takes_nothing_for_committed_that_it_was_not_told,
    ),
    25: Bug(
        "epoch not durable before its first batch",
        ((Writer, "_begin_epochs", _begin_in_memory),),
        _every_crash_around_an_epochs_first_batch,
    ),
    26: Bug(
        "compaction above the watermark",
        ((compaction, "compaction_limit", lambda log: min(log.durable_offset, log.last_stable_offset)),),
        test_replicated.test_compaction_stays_below_the_watermark,
    ),
    27: Bug(
        "empty batch across the follower's end refused",
        ((follower_append, "is_gap", _never),),
        test_replicated.test_an_empty_batch_across_our_end_is_cut_to_it,
    ),
    28: Bug(
        "retention above the watermark",
        ((retention, "retention_limit", lambda log: log.durable_offset),),
        test_replicated.test_retention_stays_below_the_watermark,
    ),
    30: Bug(
        "producer state not rebuilt after a truncation",
        ((PartitionLog, "_adopt", _adopt_with_old_producers),),
        test_replicated.test_producers_are_those_of_the_records_that_are_left,
    ),
    48: Bug(
        "stream index kept above a truncation",
        ((event_streams._PartitionIndex, "drop_above", lambda index, offset: None),),
        lambda: test_event_streams.test_events_that_were_truncated_are_forgotten(_streams_node()),
    ),
    66: Bug(
        "epoch that wrote nothing kept at the end",
        ((PartitionLog, "_forget_idle_epochs", lambda log: None),),
        test_replicated.test_truncation_at_the_end_forgets_epochs_that_wrote_nothing,
    ),
    67: Bug(
        "tombstone dropped above the common end",
        ((compaction_merge, "droppable_end", lambda plan: plan.cleaned_before),),
        test_replicated.test_a_tombstone_stays_until_every_replica_has_it,
    ),
    72: Bug(
        "start inside a batch",
        ((follower_append, "begins_inside", _never),),
        test_replicated.test_a_log_begins_with_the_batch_that_holds_its_start,
    ),
}


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    with ExitStack() as patches:
        for where, name, wrong in bug.patches:
            patches.enter_context(mock.patch.object(where, name, wrong))
        yield
