"""Delete the records of a partition below an offset (DeleteRecords).

Invariants: the new log start is durable before the acknowledgement; uncommitted records are not deleted; offsets are
never reused. Retention by age and size is in `storage/compaction/retention.py`.
"""

from braidlog.model.actor import audit
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition_registry import PartitionRegistry, refuse_published

TO_THE_END = -1


class Trim:
    """The DeleteRecords service."""

    def __init__(self, hosting: PartitionRegistry, runtime: Runtime) -> None:
        self._hosting = hosting
        self._runtime = runtime
        self._turns = KeyedLock(runtime)

    async def delete_before(self, topic: str, partition: int, offset: int) -> int:
        """Delete the records below `offset` (TO_THE_END: all committed ones); return the new log start."""
        refuse_published(topic)
        hosted = self._hosting.partition(topic, partition)
        hosted.require_leader()
        async with self._turns.acquire(str(hosted)):  # one at a time: the deletion runs on a thread
            end = hosted.high_watermark
            upto = end if offset == TO_THE_END else offset
            if not 0 <= upto <= end:
                raise BrokerError(
                    Reason.OFFSET_OUT_OF_RANGE, f"{hosted} ends at {end}: nothing below {offset} to delete"
                )
            start = await hosted.delete_below(upto, self._runtime)
        audit(f"records of {hosted} below {upto} are deleted")
        return start
