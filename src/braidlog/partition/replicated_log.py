"""A replicated partition as a coordinator's log (`model/internal_log.py`): what is committed in this node's epoch is durable.

Knows: the epoch that it was led in when this was made. Refuses to know: what is written to it, who leads after.
Invariants: nothing is appended, and nobody is told that anything is durable, once that epoch is over; an append that could not be
committed now, because too few replicas are in sync, is refused.
"""

from collections.abc import Iterator
from typing import Final

from braidlog.codec.batch import read_headers
from braidlog.codec.section import Row
from braidlog.model.errors import BrokerError, NotCoordinatorError, Reason, StorageFault
from braidlog.model.world import World
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.partition.replicated import Produced
from braidlog.replication.ready import Done
from braidlog.storage.scan import rows_of

WAIT_SECONDS_MAX: Final = 30.0
"""For the in-sync replicas. Then nobody knows whether it will be committed."""


class ReplicatedLog:
    """A `ShardLog`."""

    def __init__(self, partition: Partition, world: World) -> None:
        self._partition = partition
        self._world = world
        self.epoch = partition.leader_epoch

    @property
    def is_led(self) -> bool:
        partition = self._partition
        return partition.role is Role.LEADER and partition.leader_epoch == self.epoch and not partition.is_gone

    @property
    def identity(self) -> bytes:
        return self._partition.key[0]

    def append(self, batch: bytes) -> int:
        self._require_led()
        produced = Produced(batch, list(read_headers(batch)), self._world.now_ms())
        try:
            appended, _ = self._partition.produce(produced, needs_all=True, is_awaited=False)
        except BrokerError as error:
            raise self._failed(error.reason) from None
        except StorageFault as fault:  # the partition has stopped, and another node will lead it
            raise BrokerError(Reason.UNAVAILABLE, str(fault)) from fault
        return appended.next_offset

    def is_durable(self, next_offset: int) -> bool:
        return self.is_led and self._partition.high_watermark >= next_offset

    async def durable(self, next_offset: int) -> None:
        self._require_led()
        if self._partition.high_watermark >= next_offset:
            return
        outcome = await self._partition.committed_later(next_offset).wait(self._world, WAIT_SECONDS_MAX)
        self._require_led()
        if not isinstance(outcome, Done):
            raise self._failed(Reason.TIMED_OUT if outcome is None else outcome.reason)

    def rows(self) -> Iterator[Row]:
        return rows_of(self._partition.log)

    def sync(self) -> None:
        """Its replicas sync by themselves."""

    def replace(self, batch: bytes) -> None:
        raise AssertionError(f"{self._partition} is compacted, and not replaced by {len(batch)} bytes")

    def trim(self) -> None:
        """Compacted with all other partitions."""

    def close(self) -> None:
        """Closed with all other partitions."""

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
                text = f"the replicas of shard {number} of the coordinators have not followed in time: it may count all the same"
                return BrokerError(Reason.TIMED_OUT, text)
        return BrokerError(reason, f"shard {number} of the coordinators cannot be written now: {reason.name}")
