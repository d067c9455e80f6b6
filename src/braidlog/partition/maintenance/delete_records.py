"""Delete records: everything of a partition below an offset.

Knows: how far one may go. Refuses to know: why (retention is `storage/compaction/retention.py`).
Invariant: the new start is durable when it is acknowledged; nothing that is not committed is deleted; offsets are never reused.
"""

from braidlog.model.actor import audit
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition_registry import PartitionRegistry, refuse_published

TO_THE_END = -1


class Trim:
    """The use case."""

    def __init__(self, hosting: PartitionRegistry, runtime: Runtime) -> None:
        self._hosting = hosting
        self._runtime = runtime
        self._turns = KeyedLock(runtime)

    async def delete_before(self, topic: str, partition: int, offset: int) -> int:
        """Delete what is below `offset` (TO_THE_END: all that is committed); return where the log starts now."""
        refuse_published(topic)
        hosted = self._hosting.partition(topic, partition)
        hosted.require_leader()
        async with self._turns.acquire(str(hosted)):  # one at a time: the work is done on a thread
            end = hosted.high_watermark
            upto = end if offset == TO_THE_END else offset
            if not 0 <= upto <= end:
                raise BrokerError(
                    Reason.OFFSET_OUT_OF_RANGE, f"{hosted} ends at {end}: nothing below {offset} to delete"
                )
            start = await hosted.delete_below(upto, self._runtime)
        audit(f"records of {hosted} below {upto} are deleted")
        return start
