"""Use a partition as a coordinator's log (`coordinator/journal.py`): committed in this leader epoch means durable.

Invariants: once that epoch has ended, nothing is appended and nothing is reported as durable. An append is rejected
if too few replicas are in sync to commit it.
"""

from collections.abc import Iterator
from typing import Final

from braidlog.codec.batch.header import read_headers
from braidlog.codec.batch.records_section import Row
from braidlog.model.errors import BrokerError, NotCoordinatorError, Reason, StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.partition.replica_runner import Produced
from braidlog.replication.ready import Done
from braidlog.storage.log.record_iteration import rows_of

WAIT_SECONDS_MAX: Final = 30.0
"""How long to wait for the in-sync replicas. After it the outcome is unknown."""


class CoordinatorLog:
    """A `JournalLog` on a partition, for the leader epoch in which it was created."""

    def __init__(self, partition: Partition, runtime: Runtime) -> None:
        self._partition = partition
        self._runtime = runtime
        self.epoch = partition.leader_epoch

    @property
    def is_led(self) -> bool:
        partition = self._partition
        return partition.role is Role.LEADER and partition.leader_epoch == self.epoch and not partition.is_gone

    @property
    def is_sole(self) -> bool:
        return self._partition.is_sole

    @property
    def end_offset(self) -> int:
        return self._partition.end_offset

    def append(self, batch: bytes) -> int:
        self._require_led()
        partition = self._partition
        produced = Produced(batch, list(read_headers(batch)), self._runtime.now_ms())
        if partition.is_sole:  # synced once a caller waits for it
            return partition.append_alone(produced).next_offset
        try:
            return partition.produce(produced, needs_all=True, is_awaited=False)[0].next_offset
        except BrokerError as error:
            raise self._failed(error.reason) from None
        except StorageFault as fault:  # the partition has stopped, and another node will lead it
            raise BrokerError(Reason.UNAVAILABLE, str(fault)) from fault

    def is_durable(self, next_offset: int) -> bool:
        return self.is_led and self._partition.high_watermark >= next_offset

    async def durable(self, next_offset: int) -> None:
        self._require_led()
        partition = self._partition
        if partition.high_watermark >= next_offset:
            return
        if await partition.durable_alone(next_offset, self.epoch, self._runtime):
            return
        self._require_led()
        outcome = await partition.committed_later(next_offset).wait(self._runtime, WAIT_SECONDS_MAX)
        self._require_led()
        if not isinstance(outcome, Done):
            raise self._failed(Reason.TIMED_OUT if outcome is None else outcome.reason)

    def rows(self) -> Iterator[Row]:
        return rows_of(self._partition.log)

    def _require_led(self) -> None:
        if not self.is_led:
            raise self._failed(Reason.NOT_LEADER)

    def _failed(self, reason: Reason) -> BrokerError:
        number = self._partition.number
        match reason:
            case Reason.NOT_LEADER:
                return NotCoordinatorError(number, f"this node leads shard {number} of the coordinators no more")
            case Reason.NOT_ENOUGH_REPLICAS:
                text = (
                    f"too few replicas of shard {number} of the coordinators are in sync: try again when nodes are back"
                )
                return BrokerError(Reason.UNAVAILABLE, text)
            case Reason.TIMED_OUT:
                text = (
                    f"the replicas of shard {number} of the coordinators have not followed in time: it may still count"
                )
                return BrokerError(Reason.TIMED_OUT, text)
        return BrokerError(reason, f"shard {number} of the coordinators cannot be written now: {reason.name}")
