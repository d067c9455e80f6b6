"""Markers: the record in a partition that ends a transaction there."""

from braidlog.codec.records import control_batch
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.world import World
from braidlog.partition.hosted import HostedPartition


def mark(hosted: HostedPartition, producer_id: int, epoch: int, now_ms: int, *, commit: bool) -> int:
    """Append the marker of an end; return the offset below which the log must be durable for it to be."""
    hosted.require_leader()
    marker = control_batch(
        base_offset=0,
        leader_epoch=hosted.leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch,
        commit=commit,
        timestamp_ms=now_ms,
    )
    return hosted.append_marker(marker, now_ms)


async def abort_hanging(hosted: HostedPartition, producer_id: int, epoch: int, world: World) -> None:
    """Abort what a producer has open in a partition, if anything: no transaction is known that would ever end it."""
    opened = [] if hosted.open_log is None else hosted.producers()  # in a closed partition no transaction is open
    known = next((each for each in opened if each.producer_id == producer_id), None)
    if known is None or known.open_since is None:
        return
    if epoch < known.epoch:
        text = f"producer {producer_id} is in epoch {known.epoch} in {hosted}, not {epoch}"
        raise BrokerError(Reason.STALE_PRODUCER_EPOCH, text)
    await hosted.made_durable(mark(hosted, producer_id, epoch, world.now_ms(), commit=False), world)
