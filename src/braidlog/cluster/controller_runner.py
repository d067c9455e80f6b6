"""Runs one node's controller: feeds it metadata changes, failure verdicts and time, and writes its proposals.

Invariant: a proposal is written directly after the entry that it was computed at, or not at all.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.cluster.metadata.proposals import write_entry
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.model.errors import BrokerError
from braidlog.model.runtime.runtime import Runtime
from braidlog.replication.control.controller import (
    Applied,
    Controller,
    ControllerMessage,
    LeaseLost,
    NotWritten,
    Partition,
    PartitionKey,
    Propose,
    Tick,
    View,
    step,
)
from braidlog.replication.control.swim import Verdict

TICK_SECONDS: Final = 0.1
Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Views:
    """Converts the image to controller views, and examines only topics that changed since the previous view."""

    def __init__(self) -> None:
        self._seen: dict[str, Topic] = {}
        self._partitions: dict[PartitionKey, Partition] = {}

    def at(self, image: Image, seq: int) -> Applied:
        names = [name for name in self._seen if name not in image.topics]
        names += [name for name, topic in image.topics.items() if self._seen.get(name) is not topic]
        changed = [key for name in names for key in self._look(name, image.topics.get(name))]
        return Applied(View(seq, image.cluster.nodes(), self._partitions), tuple(changed))

    def _look(self, name: str, topic: Topic | None) -> Iterator[PartitionKey]:
        """Update a topic's partitions; yields the keys of those that changed."""
        before, now = self._seen.pop(name, None), []
        if topic is not None:
            self._seen[name] = topic
            now = [] if topic.holder else [Partition(each, topic.min_in_sync) for each in topic.assignments]
        for number in range(max(before.partitions if before else 0, len(now))):
            key = (name, number)
            found = now[number] if number < len(now) else None
            if found != self._partitions.get(key):
                yield key
            if found is None:
                self._partitions.pop(key, None)
            else:
                self._partitions[key] = found


class NodeController:
    """Start `run` as a task. Call `applied` after each metadata change, `accused` for each verdict, `lost_lease` for
    each lost lease.
    """

    def __init__(self, number: int, metadata: Metadata, runtime: Runtime, spawn: Spawn) -> None:
        self._metadata = metadata
        self._runtime = runtime
        self._spawn = spawn
        self._views = Views()
        self._controller = Controller(node=number)
        self._writing = 0

    def on_metadata_change(self) -> None:
        self._tell(self._views.at(self._metadata.image, self._metadata.seq))

    def on_verdict(self, verdict: Verdict) -> None:
        self._tell(verdict)

    def on_lease_lost(self, lost: LeaseLost) -> None:
        self._tell(lost)

    async def run(self) -> None:
        while True:
            await self._runtime.wakeup().wait(TICK_SECONDS)
            self._tell(Tick())

    async def wait_proposals_written(self, seconds_max: float) -> None:
        """Wait until no proposal is in flight, or until the time limit."""
        until = self._runtime.monotonic() + seconds_max
        while self._writing and self._runtime.monotonic() < until:
            await self._runtime.wakeup().wait(TICK_SECONDS / 5)

    def _tell(self, message: ControllerMessage) -> None:
        now_ms = int(self._runtime.monotonic() * 1000)
        self._controller, proposal = step(self._controller, message, now_ms)
        if proposal is not None:
            self._writing += 1
            self._spawn(self._write(proposal), "controller")

    async def _write(self, proposal: Propose) -> None:
        try:
            is_written = await write_entry(self._metadata, proposal)
        except BrokerError:
            return  # the outcome is unknown: a later step proposes again, or sees the entry applied
        finally:
            self._writing -= 1
        if not is_written:
            self._tell(NotWritten(proposal.after))
