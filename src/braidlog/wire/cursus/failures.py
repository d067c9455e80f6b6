"""Error lines: `ERROR: <code> key=value …`, and the codes that clients look for.

The adapter translates the broker's reasons into these codes.
Invariant: a failure is always one line. Text from a peer is quoted and cut before it is repeated, so no value can
forge a field.

    ERROR: topic_not_found topic=orders
    ERROR: offset_regression reason="the group is at 10, 7 was sent"
    ERROR: NOT_LEADER LEADER_IS 10.0.0.2:9000          the one code whose field has no equals sign
"""

import re
from enum import StrEnum

import msgspec

from braidlog.codec.errors import ProtocolError

ECHO_CHARS_MAX = 64
"""Maximum characters of a peer's text that an error repeats."""

_PREFIX = b"ERROR:"
_PLAIN = re.compile(r'[^\s"\\\x00-\x1f\x7f]*')
_FIELD = re.compile(r'([^\s="]+)=("(?:[^"\\]|\\.)*"|\S*)')
_FIELDS_MAX = 64
_LEADER_IS = "LEADER_IS"


class ErrorCode(StrEnum):
    """Codes with a meaning of their own. `missing_<argument>` and `invalid_<argument>` are derived from the
    argument's name.
    """

    UNKNOWN_COMMAND = "unknown_command"
    EMPTY_COMMAND = "empty_command"
    MALFORMED_INPUT = "malformed_input"
    DECODE_FAILED = "decode_failed"
    FRAME_TOO_LARGE = "frame_too_large"
    UNEXPECTED_ARGUMENT = "unexpected_argument"
    DUPLICATE_ARGUMENT = "duplicate_argument"
    INVALID_ACKS = "invalid_acks"
    TOPIC_NOT_FOUND = "topic_not_found"
    INVALID_TOPIC = "invalid_topic"
    INVALID_PARTITIONS = "invalid_partitions"
    CREATE_TOPIC_FAILED = "create_topic_failed"
    PARTITION_NOT_FOUND = "partition_not_found"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    NOT_LEADER = "NOT_LEADER"
    NOT_COORDINATOR = "NOT_COORDINATOR"
    DISTRIBUTION_NOT_ENABLED = "distribution_not_enabled"
    DISTRIBUTION_REQUIRED = "distribution_required"
    LEADER_ELECTION_REJECTED = "leader_election_rejected"
    GROUP_NOT_FOUND = "group_not_found"
    MEMBER_NOT_FOUND = "member_not_found"
    GEN_MISMATCH = "GEN_MISMATCH"
    NOT_OWNER = "NOT_OWNER"
    REBALANCE_REQUIRED = "REBALANCE_REQUIRED"
    OFFSET_REGRESSION = "offset_regression"
    STALE_PRODUCER_EPOCH = "stale_producer_epoch"
    IDEMPOTENCY_GAP = "idempotency_gap"
    RECORD_TOO_LARGE = "record_too_large"
    NOT_ENOUGH_REPLICAS = "insufficient_in_sync_replicas"
    TIMED_OUT = "timed_out"
    EVENT_SOURCING_NOT_ENABLED = "event_sourcing_not_enabled"
    VERSION_CONFLICT = "version_conflict"
    SNAPSHOT_VERSION_EXCEEDS_STREAM = "snapshot_version_exceeds_stream"
    TRANSACTION_NOT_FOUND = "transaction_not_found"
    INVALID_TRANSACTION_STATE = "invalid_transaction_state"
    INVALID_AUTH = "invalid_auth"
    AUTHENTICATION_REQUIRED = "authentication_required"
    AUTHENTICATION_FAILED = "authentication_failed"
    NOT_AUTHORIZED_FOR_TOPIC = "NOT_AUTHORIZED_FOR_TOPIC"
    NOT_AUTHORIZED_FOR_OPERATION = "NOT_AUTHORIZED_FOR_OPERATION"
    COMMAND_FAILED = "command_failed"


class Failure(msgspec.Struct, frozen=True):
    """`ERROR: <code> key=value …`. In a JSON answer, its `error` contains the same line."""

    code: str
    fields: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, code: str, **fields: object) -> "Failure":
        """Return a failure with its fields in the given order."""
        return cls(str(code), tuple((name, str(value)) for name, value in fields.items()))

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.fields if key == name), None)


class CommandError(ProtocolError):
    """A complete frame that is not a valid request; `failure` is the error sent to the peer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure_line(failure))
        self.failure = failure


def echo(value: str | bytes) -> str:
    """Return the part of a peer's text that an error may repeat."""
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    return text[:ECHO_CHARS_MAX]


def is_failure(body: bytes) -> bool:
    return body.startswith(_PREFIX)


def failure_line(failure: Failure) -> str:
    """Return `code key=value …`, without the prefix."""
    if not failure.code or _PLAIN.fullmatch(failure.code) is None:
        raise ValueError(f"{failure.code!r} is not an error code")
    parts = [failure.code]
    for index, (name, value) in enumerate(failure.fields):
        if not name or _PLAIN.fullmatch(name) is None or "=" in name:
            raise ValueError(f"{name!r} is not a field name")
        plain = _PLAIN.fullmatch(value) is not None
        # The Cursus page, §5: `ERROR: NOT_LEADER LEADER_IS h:p`; clients look for these two words with one blank between.
        redirects = index == 0 and name == _LEADER_IS and failure.code == ErrorCode.NOT_LEADER
        joint = " " if redirects and plain and value else "="
        parts.append(f"{name}{joint}{value if plain else _quote(value)}")
    return " ".join(parts)


def write_failure(failure: Failure) -> bytes:
    return b"ERROR: " + failure_line(failure).encode()


def read_failure(body: bytes) -> Failure:
    """Parse the failure in a frame that `is_failure`."""
    return parse_failure_line(decode_text(body)[len(_PREFIX) :])


def parse_failure_line(line: str) -> Failure:
    words = line.strip().split(None, 1)
    if not words:
        raise ProtocolError("an error without a code")
    code, rest = words[0], words[1] if len(words) > 1 else ""
    if _PLAIN.fullmatch(code) is None:
        raise ProtocolError("an error code with a quote or a control character in it")
    fields: list[tuple[str, str]] = []
    if code == ErrorCode.NOT_LEADER and rest.startswith(_LEADER_IS + " "):
        leader, _, rest = rest[len(_LEADER_IS) :].strip().partition(" ")
        fields.append((_LEADER_IS, leader))
    for match in _FIELD.finditer(rest):
        if len(fields) == _FIELDS_MAX:
            raise ProtocolError(f"an error with more than {_FIELDS_MAX} fields")
        fields.append((match[1], _unquote(match[2])))
    return Failure(code, tuple(fields))


def decode_text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("the text is not UTF-8", error.start) from error


def _quote(value: str) -> str:
    return msgspec.json.encode(value).decode()


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        return value[1:-1]  # another broker may quote by other rules; only the words matter
