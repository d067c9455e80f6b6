"""Transaction markers: the record that ends a transaction in a partition.

Does not handle: which node leads a partition (`broker/coordination/marker_routing.py`).
Invariants: a replaced coordinator ends nothing. A repeated end, from any node and however late, affects only the
transaction that it names. An end is reported as written once it is committed.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from braidlog.codec.batch.records import EndMarker, control_batch
from braidlog.coordinator.offsets import Place
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.opening import wake
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry

Failures = dict[Place | str, BrokerError | StorageFault]
"""Errors by partition or group in which an end could not be written."""
EndCommits = Callable[[str, Sequence["End"]], Awaitable[None]]
"""end_commits(group, ends): ends the pending commits of a group; raises if another node coordinates it."""


class End(msgspec.Struct, frozen=True, array_like=True):
    """End of one transaction in some partitions and groups, as sent between nodes."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    number: int
    commit: bool
    places: list[Place]
    groups: list[str] = []
    """Groups whose pending commits end with the transaction."""

    @property
    def targets(self) -> list[Place | str]:
        return [*self.places, *self.groups]

    @property
    def marker(self) -> EndMarker:
        return EndMarker(self.commit, self.coordinator_epoch, self.number)


class MarkerWriter(Protocol):
    """Writes markers to the leaders of partitions."""

    async def write(self, ends: Sequence[End], *, patient: bool = True) -> Failures:
        """Write all markers. `patient`: retry for a while if a partition has no leader."""
        ...


class LocalMarkers:
    """Writes markers for partitions that this node leads, and groups that it coordinates."""

    def __init__(self, hosting: PartitionRegistry, runtime: Runtime, end_commits: EndCommits) -> None:
        self._hosting = hosting
        self._runtime = runtime
        self._end_commits = end_commits

    async def write(self, ends: Sequence[End], *, patient: bool = True) -> Failures:  # noqa: ARG002 - only local leaders here
        """Write all markers before waiting for any."""
        failures: Failures = {}
        await self._open(ends)
        marked: dict[Place, tuple[Partition, int]] = {}
        for end in ends:
            for place in end.places:
                try:
                    hosted = self._hosting.partition(*place)
                    marked[place] = hosted, mark(hosted, end.producer_id, end.epoch, end.marker, self._runtime.now_ms())
                except (BrokerError, StorageFault) as error:
                    failures[place] = error
        for place, (hosted, next_offset) in marked.items():
            try:
                await hosted.wait_durable(next_offset, self._runtime)
            except (BrokerError, StorageFault) as error:
                failures[place] = error
        for group in sorted({group for end in ends for group in end.groups}):
            there = [msgspec.structs.replace(end, groups=[group]) for end in ends if group in end.groups]
            try:
                await self._end_commits(group, there)
            except (BrokerError, StorageFault) as error:
                failures[group] = error
        return failures

    async def _open(self, ends: Sequence[End]) -> None:
        found = []
        for place in {place for end in ends for place in end.places}:
            with suppress(BrokerError, StorageFault):  # reported when the marker is written
                found.append(self._hosting.partition(*place))
        await wake(found, self._hosting, self._runtime)


def mark(hosted: Partition, producer_id: int, epoch: int, marker: EndMarker, now_ms: int) -> int:
    """Append an end marker unless it exists; returns the offset up to which the log must be durable."""
    hosted.require_leader()
    if hosted.has_ended(producer_id, marker):
        return hosted.end_offset
    batch = control_batch(
        base_offset=0,
        leader_epoch=hosted.leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch,
        commit=marker.commit,
        timestamp_ms=now_ms,
        coordinator_epoch=marker.coordinator_epoch,
        number=marker.number,
    )
    return hosted.append_marker(batch, now_ms)


async def abort_hanging(hosted: Partition, producer_id: int, epoch: int, runtime: Runtime) -> None:
    """Abort a producer's open transaction in a partition if no coordinator knows it."""
    opened = [] if hosted.open_log is None else hosted.producers()  # a closed partition has no open transaction
    known = next((each for each in opened if each.producer_id == producer_id), None)
    if known is None or known.open_since is None:
        return
    if epoch < known.epoch:
        text = f"producer {producer_id} is in epoch {known.epoch} in {hosted}, not {epoch}"
        raise BrokerError(Reason.STALE_PRODUCER_EPOCH, text)
    next_offset = mark(hosted, producer_id, epoch, EndMarker(commit=False), runtime.now_ms())
    await hosted.wait_durable(next_offset, runtime)
