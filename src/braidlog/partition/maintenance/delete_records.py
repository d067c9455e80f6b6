"""Delete records: everything of a partition below an offset.

Knows: how far one may go. Refuses to know: why (retention is `storage/compaction/retention.py`).
Invariant: the new start is durable when it is acknowledged; nothing that is not committed is deleted; offsets are never reused.
"""

from braidlog.model.actor import audit
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.keyed_lock import Turns
from braidlog.model.runtime.runtime import World
from braidlog.partition.partition_registry import Hosting, refuse_published

TO_THE_END = -1


class Trim:
    """The use case."""

    def __init__(self, hosting: Hosting, world: World) -> None:
        self._hosting = hosting
        self._world = world
        self._turns = Turns(world)

    async def delete_before(self, topic: str, partition: int, offset: int) -> int:
        """Delete what is below `offset` (TO_THE_END: all that is committed); return where the log starts now."""
        refuse_published(topic)
        hosted = self._hosting.partition(topic, partition)
        hosted.require_leader()
        async with self._turns.take(str(hosted)):  # one at a time: the work is done on a thread
            end = hosted.high_watermark
            upto = end if offset == TO_THE_END else offset
            if not 0 <= upto <= end:
                raise BrokerError(
                    Reason.OFFSET_OUT_OF_RANGE, f"{hosted} ends at {end}: nothing below {offset} to delete"
                )
            start = await hosted.delete_below(upto, self._world)
        audit(f"records of {hosted} below {upto} are deleted")
        return start
