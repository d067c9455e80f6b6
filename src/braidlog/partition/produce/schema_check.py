"""Check at the append that each value names a schema of its topic's subject, if the topic requires it.

Does not handle: schemas themselves, and which ids a subject has (`broker/schemas/schema_view.py`). Invariant: on the
event loop a value costs a read of its first five bytes. A compressed batch is decompressed once, by `append.py`, or
by the worker if it is large.
"""

import contextlib
from collections.abc import Sequence
from typing import Protocol

from braidlog.codec.batch.header import BatchHeader, check_crc
from braidlog.codec.batch.records import SchemaIds, heads_of, read_section
from braidlog.codec.compression import Compression
from braidlog.model.errors import BrokerError, ProtocolError, Reason
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.registry.framing import subject_of

Buffer = bytes | bytearray | memoryview

SHOWN_MAX = 5


class KnownSchemas(Protocol):
    """The schema ids of subjects."""

    def ids_of(self, subject: str) -> set[int]:
        """Return the ids as of the last refresh."""
        ...

    async def learn(self) -> object:
        """Refresh from what is committed now."""
        ...

    def is_stale(self) -> bool:
        """Return whether the last refresh is long ago: refreshes also find deletions."""
        ...


def heads_of_batches(batch: Buffer, headers: Sequence[BatchHeader]) -> SchemaIds:
    """Collect the schema ids of consecutive batches on their way into the log; raises on damaged or invalid batches.

    Does not decompress: a compressed batch raises.
    """
    ids: set[int] = set()
    view, position = memoryview(batch), 0
    for header in headers:
        if header.compression != Compression.NONE:
            raise BrokerError(Reason.TIMED_OUT, "the topic's settings have just changed; try again")
        check_crc(view, position, header)
        try:
            section = read_section(view, position, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            found = heads_of(section, header)
        except ProtocolError as error:
            raise BrokerError(Reason.INVALID_RECORD, str(error)) from error
        if found.first_without >= 0:
            return found
        ids |= found.ids
        position += header.size_bytes
    return SchemaIds(ids)


class SchemaCheck:
    """The schema check of a node."""

    def __init__(self, known: KnownSchemas) -> None:
        self._known = known

    async def learn(self) -> None:
        """Refresh the known schemas, before `check_now`."""
        await self._known.learn()

    def check_now(self, topic: str, found: SchemaIds) -> None:
        """Check against the known schemas, without a wait."""
        refuse_unknown(topic, found, self._known.ids_of(subject_of(topic)))

    async def check(self, topic: str, found: SchemaIds) -> None:
        """Check against the committed schemas.

        Refreshes the known schemas if an id is missing, so a new schema is not rejected.
        """
        subject = subject_of(topic)
        if found.first_without < 0 and not found.ids <= self._known.ids_of(subject):
            await self._known.learn()
        elif self._known.is_stale():
            # A refresh finds deleted schemas; producers may write even if it fails.
            with contextlib.suppress(BrokerError):
                await self._known.learn()
        refuse_unknown(topic, found, self._known.ids_of(subject))


def refuse_unknown(topic: str, found: SchemaIds, known: set[int]) -> None:
    """Raise unless every value has a schema id of the topic's subject."""
    subject = subject_of(topic)
    if found.first_without >= 0:
        raise BrokerError(
            Reason.INVALID_RECORD,
            f"the value of record {found.first_without} of the batch begins with no schema id, and topic {topic!r} asks for one "
            f"of subject {subject!r}; serialize it with a schema registry's serializer (braidlog.value.schema.check)",
        )
    strange = sorted(found.ids - known)
    if strange:
        listed = ", ".join(map(str, strange[:SHOWN_MAX]))
        raise BrokerError(
            Reason.INVALID_RECORD,
            f"subject {subject!r} has no schema {listed}, and topic {topic!r} asks for one of its; "
            "register it there first (braidlog.value.schema.check)",
        )
