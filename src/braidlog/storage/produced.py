"""What a producer may send: the checks of one batch on its way in."""

from braidlog.codec.batch import CONTROL, TRANSACTIONAL, BatchHeader, check_crc
from braidlog.codec.records import check_section, read_section
from braidlog.model.errors import BrokerError, ProtocolError, Reason
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.settings import TopicSettings


def check_produced(
    header: BatchHeader,
    data: memoryview,
    position: int,
    settings: TopicSettings,
    *,
    records_checked: bool,
    own: bool = False,
) -> None:
    """Raise unless the batch at `position` is whole and one that a producer may append to a topic of these settings. `own`: it
    was sealed here just now."""
    size = header.size_bytes
    if size > settings.batch_bytes_max:
        raise BrokerError(
            Reason.RECORD_TOO_LARGE,
            f"a batch of {size} bytes is larger than the topic's {settings.batch_bytes_max}",
        )
    if not own:
        check_crc(data, position, header)
    if header.record_count != header.last_offset_delta + 1:
        raise ProtocolError(f"{header.record_count} records do not fill {header.last_offset_delta + 1} offsets")
    attributes = header.attributes
    if attributes & CONTROL:
        raise BrokerError(Reason.INVALID_RECORD, "control batches are written by the log, not by producers")
    if attributes & TRANSACTIONAL and header.producer_id < 0:
        raise BrokerError(Reason.INVALID_RECORD, "a transaction needs a producer: nobody else could end it")
    if header.base_sequence >= 0 and size != len(data):
        # Kafka too takes one batch per idempotent append: half a retry has no honest answer.
        raise BrokerError(Reason.INVALID_RECORD, "an idempotent producer appends one batch at a time")
    if not records_checked:
        try:
            section = read_section(data, position, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            check_section(section, header, keyed=settings.compact)
        except ProtocolError as error:
            raise BrokerError(Reason.INVALID_RECORD, str(error)) from error
