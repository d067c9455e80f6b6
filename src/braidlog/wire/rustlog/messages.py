"""The messages of the rustlog dialect, with the range of each field, and its error codes.

`jsonform.py` and `binary.py` encode them.
Invariant: every object built from a peer's bytes is one of these types; a value outside its range never becomes a
message.

The dialect has two spellings of one set of operations (the RustLog page, §1): the document's JSON, and the binary
form of its published clients. Requests are equal in both. An answer with fewer fields in the binary form has a
`Brief…` type.
"""

from enum import Enum, IntEnum
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec

from braidlog.codec.batch.row_layout import Packed

FRAME_BYTES_MAX: Final = 10_485_760
"""MAX_FRAME_SIZE of the document: the payload, without the four bytes of its length. One byte more is rejected."""

RECORDS_PER_BINARY_PRODUCE_MAX: Final = 2_000_000
"""Maximum records of a binary Produce: each becomes an object, so more empty ones would not stay small in memory."""

RECORDS_PER_PRODUCE_MAX: Final = 1_000
"""The document's limit of records in a JSON batch. The binary form is limited only by its frame."""

PARTITIONS_PER_TOPIC_MAX: Final = 1_000
"""The document's limit for CreateTopic. JSON checks it here; a binary client expects code 12, so its adapter checks."""

U64_MAX: Final = 2**64 - 1

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
"""msgspec bounds integers within 63 bits only: the upper bound of a u64 is checked when its message is built."""
I63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A u64 on the hot path, checked by msgspec alone; offsets and microseconds never exceed it."""

Id: TypeAlias = (
    Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | Annotated[str, msgspec.Meta(max_length=256)] | None
)
"""An id that a JSON client may add to a request; the answer repeats it."""

Header = tuple[str, bytes | None]


class Form(Enum):
    """The form of a payload. An answer has the form of its request."""

    JSON = "json"
    BINARY = "binary"


class ErrorCode(IntEnum):
    """The document's codes, used in the JSON form."""

    INVALID_REQUEST = 400
    TOPIC_NOT_FOUND = 404
    PARTITION_NOT_FOUND = 405
    RECORD_TOO_LARGE = 413
    OFFSET_OUT_OF_RANGE = 416
    INTERNAL_SERVER_ERROR = 500
    STORAGE_ERROR = 503
    INSUFFICIENT_SPACE = 507


class BinaryErrorCode(IntEnum):
    """The codes of the published clients in the binary form (the RustLog page, §4). Their server closes only after
    FRAME.
    """

    FRAME = 1
    DECODE = 2
    FETCH_FAILED = 4
    COMMIT_FAILED = 5
    DOES_NOT_EXIST = 10
    ALREADY_EXISTS = 11
    BAD_PARTITION_COUNT = 12
    DESCRIBE_TOPIC_FAILED = 13
    DESCRIBE_PARTITION_FAILED = 14
    INTERNAL = 500


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True, omit_defaults=True):
    """Base of all messages: the JSON field `type` (the class's name), and the additive `id`."""

    u64_fields: ClassVar[tuple[str, ...]] = ()

    id: Id = None

    def __post_init__(self) -> None:
        for name in self.u64_fields:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= U64_MAX:
                raise ValueError(f"{name} is not an unsigned 64-bit integer")


class Brief(msgspec.Struct, frozen=True):
    """An answer of the binary form with fewer fields than in JSON."""


Answer = Message | Brief


# ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Produce(Message, frozen=True):
    """Append records. `keys` is additive: one key or null per record."""

    topic: str
    partition: U32
    records: Annotated[list[bytes], msgspec.Meta(max_length=RECORDS_PER_PRODUCE_MAX)]
    keys: list[bytes | None] | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and len(self.keys) != len(self.records):
            raise ValueError(f"{len(self.keys)} keys for {len(self.records)} records")


class Fetch(Message, frozen=True):
    """Read records from `offset` on. `max_wait_ms` is additive: how long to wait if there are no records yet."""

    u64_fields = ("offset", "max_bytes")

    group_id: str
    topic: str
    partition: U32
    offset: U64
    max_bytes: U64
    max_wait_ms: U32 | None = None


class OffsetCommit(Message, frozen=True):
    """Store a group's committed offset: the next one to read."""

    u64_fields = ("offset",)

    group: str
    topic: str
    partition: U32
    offset: U64


class OffsetFetch(Message, frozen=True):
    group: str
    topic: str
    partition: U32


class CreateTopic(Message, frozen=True):
    topic: str
    partition_count: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_PER_TOPIC_MAX)]


class ListTopics(Message, frozen=True):
    pass


class DescribeTopic(Message, frozen=True):
    topic: str


class DescribePartition(Message, frozen=True):
    topic: str
    partition: U32


class MetricsFetch(Message, frozen=True):
    pass


class Ping(Message, frozen=True):
    pass


# ── Answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class ProduceResponse(Message, frozen=True):
    u64_fields = ("base_offset",)

    base_offset: U64
    record_count: U32


class FetchedRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One record of a JSON answer. `timestamp` is in microseconds; `key` and `headers` are additive and omitted if
    empty.
    """

    offset: I63
    timestamp: I63
    payload: bytes
    key: bytes | None = None
    headers: tuple[Header, ...] = ()


class FetchResponse(Message, frozen=True):
    u64_fields = ("next_offset",)

    records: list[FetchedRecord]
    next_offset: U64


class BriefFetchResponse(Brief, frozen=True):
    """The binary answer to Fetch: values only, in offset order."""

    records: list[bytes]
    next_offset: int


class PackedFetchResponse(msgspec.Struct, frozen=True):
    """An answer to Fetch in either form whose records are already encoded, as `RECORD_ROW`s of the request's form."""

    rows: Packed
    next_offset: int


class OffsetCommitResponse(Message, frozen=True):
    success: bool


class OffsetFetchResponse(Message, frozen=True):
    u64_fields = ("offset",)

    offset: U64 | None


class CreateTopicResponse(Message, frozen=True):
    success: bool
    partitions_created: U32


class BriefCreateTopicResponse(Brief, frozen=True):
    success: bool


class TopicSummary(msgspec.Struct, frozen=True):
    name: str
    partition_count: U32


class ListTopicsResponse(Message, frozen=True):
    topics: list[TopicSummary]


class PartitionSummary(msgspec.Struct, frozen=True):
    """`high_watermark` as in the document: the next offset to be assigned."""

    partition: U32
    high_watermark: I63
    log_start_offset: I63
    segment_count: I63


class DescribeTopicResponse(Message, frozen=True):
    topic: str
    partitions: list[PartitionSummary]


class BriefPartition(msgspec.Struct, frozen=True):
    partition: int
    high_watermark: int


class BriefDescribeTopicResponse(Brief, frozen=True):
    topic: str
    partition_count: int
    partitions: list[BriefPartition]


class DescribePartitionResponse(Message, frozen=True):
    u64_fields = ("high_watermark", "log_start_offset", "segment_count")

    topic: str
    partition: U32
    high_watermark: U64
    log_start_offset: U64
    segment_count: U64


class BriefDescribePartitionResponse(Brief, frozen=True):
    topic: str
    partition: int
    high_watermark: int


class MetricsFetchResponse(Message, frozen=True):
    """`metrics` is Prometheus text in both forms."""

    metrics: str


class Pong(Message, frozen=True):
    pass


PONG: Final = Pong()

RETRIABLE: Final[dict[str, Any]] = {"retriable": True}
"""The `details` of an Error after which a client may retry: another node serves the request, and nothing was done."""
OUTCOME_UNKNOWN: Final[dict[str, Any]] = {"outcome": "unknown"}
"""The `details` of a time-out Error: the request may still complete, so a retry may execute it twice."""


class Error(Message, frozen=True):
    """The answer to any request that was not served. The binary form omits `details` and has its own codes.

    `details` has no default: the document's schema always includes it, as null if there are none.
    """

    code: Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
    message: str
    details: dict[str, Any] | None
