"""Markers: the record in a partition that ends a transaction there.

Knows: what a marker says, and that it is written once. Refuses to know: who leads a partition (`broker/marker_routing.py`).
Invariants: a coordinator that has a successor ends nothing; an end that is repeated, by whomever and however late, is the end of
the transaction that it names and of no other; it is told as written once it is committed.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from braidlog.codec.records import EndMarker, control_batch
from braidlog.coordinator.offsets import Place
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.world import World
from braidlog.partition.hosting import Hosting
from braidlog.partition.opening import wake
from braidlog.partition.partition import Partition

Failures = dict[Place | str, BrokerError | StorageFault]
"""Where an end could not be written, in a partition or for a group, and why."""
EndCommits = Callable[[str, Sequence["End"]], Awaitable[None]]
"""end_commits(group, ends): these transactions have ended for this group; raises if another node keeps it."""


class End(msgspec.Struct, frozen=True, array_like=True):
    """The end of one transaction in some partitions and for some groups, as it travels between nodes."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    number: int
    commit: bool
    places: list[Place]
    groups: list[str] = []
    """Whose pending commits end with it."""

    @property
    def targets(self) -> list[Place | str]:
        return [*self.places, *self.groups]

    @property
    def marker(self) -> EndMarker:
        return EndMarker(self.commit, self.coordinator_epoch, self.number)


class MarkerWriter(Protocol):
    """Who writes markers, wherever partitions are led."""

    async def write(self, ends: Sequence[End], *, patient: bool = True) -> Failures:
        """Write all of them. `patient`: ask again for a while where a partition has no leader now."""
        ...


class LocalMarkers:
    """For partitions that this node leads, and groups that it keeps."""

    def __init__(self, hosting: Hosting, world: World, end_commits: EndCommits) -> None:
        self._hosting = hosting
        self._world = world
        self._end_commits = end_commits

    async def write(self, ends: Sequence[End], *, patient: bool = True) -> Failures:  # noqa: ARG002 - nobody else leads here
        """All are written before any is waited for."""
        failures: Failures = {}
        await self._open(ends)
        marked: dict[Place, tuple[Partition, int]] = {}
        for end in ends:
            for place in end.places:
                try:
                    hosted = self._hosting.partition(*place)
                    marked[place] = hosted, mark(hosted, end.producer_id, end.epoch, end.marker, self._world.now_ms())
                except (BrokerError, StorageFault) as error:
                    failures[place] = error
        for place, (hosted, next_offset) in marked.items():
            try:
                await hosted.made_durable(next_offset, self._world)
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
            with suppress(BrokerError, StorageFault):  # told when it is written to
                found.append(self._hosting.partition(*place))
        await wake(found, self._hosting, self._world)


def mark(hosted: Partition, producer_id: int, epoch: int, marker: EndMarker, now_ms: int) -> int:
    """Append the marker of an end, unless it is there; return the offset below which all must be durable for it to be."""
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


async def abort_hanging(hosted: Partition, producer_id: int, epoch: int, world: World) -> None:
    """Abort what a producer has open in a partition, if anything: no transaction is known that would ever end it."""
    opened = [] if hosted.open_log is None else hosted.producers()  # in a closed partition no transaction is open
    known = next((each for each in opened if each.producer_id == producer_id), None)
    if known is None or known.open_since is None:
        return
    if epoch < known.epoch:
        text = f"producer {producer_id} is in epoch {known.epoch} in {hosted}, not {epoch}"
        raise BrokerError(Reason.STALE_PRODUCER_EPOCH, text)
    next_offset = mark(hosted, producer_id, epoch, EndMarker(commit=False), world.now_ms())
    await hosted.made_durable(next_offset, world)
