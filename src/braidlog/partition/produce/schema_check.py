"""The check of values at the append: each names a schema of its topic's subject, where the topic asks for that.

Knows: what a batch says of its values (five bytes of each), what is refused and how that is said. Refuses to know: how the ids of
a subject are known (`broker/schemas/schema_view.py`), what a schema is.
Invariant: on the loop a value costs a look at its first bytes; what is compressed is opened by who opens it anyhow (`append.py`),
the worker if it is large.
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
    """The ids of subjects."""

    def ids_of(self, subject: str) -> set[int]:
        """As they were when somebody last looked."""
        ...

    async def learn(self) -> object:
        """Look at what is committed now."""
        ...

    def is_stale(self) -> bool:
        """Whether it is a while since somebody looked: deletions are learned by that."""
        ...


def heads_of_batches(batch: Buffer, headers: Sequence[BatchHeader]) -> SchemaIds:
    """Of one batch after the other, as they are on their way into the log; what is damaged is told from what is wrong. What is
    compressed is not opened here."""
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
    """The check itself, for a topic that asks for it."""

    def __init__(self, known: KnownSchemas) -> None:
        self._known = known

    async def learn(self) -> None:
        """Before a batch that is made and written without a wait (`check_now`)."""
        await self._known.learn()

    def check_now(self, topic: str, found: SchemaIds) -> None:
        """By what is known."""
        refuse_unknown(topic, found, self._known.ids_of(subject_of(topic)))

    async def check(self, topic: str, found: SchemaIds) -> None:
        """By what is committed, as far as it matters: who uses a schema that was registered just now is not refused."""
        subject = subject_of(topic)
        if found.first_without < 0 and not found.ids <= self._known.ids_of(subject):
            await self._known.learn()
        elif self._known.is_stale():
            # Deletions are learned now and then; that they cannot be does not keep anybody from writing.
            with contextlib.suppress(BrokerError):
                await self._known.learn()
        refuse_unknown(topic, found, self._known.ids_of(subject))


def refuse_unknown(topic: str, found: SchemaIds, known: set[int]) -> None:
    """Raise unless every value has an id of the topic's subject."""
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
