"""The errors of the client, few types, each with what it says about its request.

A driver translates its dialect's codes to these types, and keeps the dialect's own words.
An error never claims more than is known: a request that was sent and not answered is never called "not stored".

| type | was it sent? | may it be stored? | retry? |
|---|---|---|---|
| `ConnectError` | no | no | yes |
| `NoAnswerError` | yes | unknown | reads: yes. Writes: see `UnknownOutcomeError` |
| `RefusedError` | yes, and answered | as its reason says | as its reason says |
| `SignInError`, a `RefusedError` | no: authentication failed | no | with another password or token |
| `UnknownOutcomeError` | yes | unknown | only if duplicates are acceptable |
| `UnsupportedError`, `RecordError` | no: the dialect cannot express it | no | never |
| `BufferFullError` | no | no | when there is room |
| `AbortedError` | maybe | not visible with `read_committed` | in another transaction |
| `ClosedError` | no | no | never |
"""

from enum import Enum, IntEnum
from typing import NamedTuple

Address = tuple[str, int]


class Stored(Enum):
    """Whether the records of a refused request are stored."""

    NO = "no"
    MAYBE = "maybe"


class _Meaning(NamedTuple):
    retriable: bool
    stored: Stored
    text: str


class Refusal(Enum):
    """Why a server refused a request, independent of the dialect."""

    TOPIC_NOT_FOUND = _Meaning(retriable=False, stored=Stored.NO, text="no such topic or partition")
    TOPIC_EXISTS = _Meaning(retriable=False, stored=Stored.NO, text="the topic exists already")
    NOT_LEADER = _Meaning(retriable=True, stored=Stored.NO, text="another node is the leader")
    REJOIN = _Meaning(retriable=False, stored=Stored.NO, text="the group has rebalanced; join again")
    OFFSET_OUT_OF_RANGE = _Meaning(retriable=False, stored=Stored.NO, text="no such offset; it may have been deleted")
    FENCED = _Meaning(
        retriable=False, stored=Stored.NO, text="the producer's sequence or epoch does not match the log's"
    )
    TOO_LARGE = _Meaning(retriable=False, stored=Stored.NO, text="larger than the server accepts")
    INVALID = _Meaning(retriable=False, stored=Stored.NO, text="the server rejects the request as invalid")
    NOT_ALLOWED = _Meaning(retriable=False, stored=Stored.NO, text="not allowed")
    BUSY = _Meaning(retriable=True, stored=Stored.NO, text="the server is busy; nothing was done, try again")
    TIMED_OUT = _Meaning(retriable=True, stored=Stored.MAYBE, text="not done in time; it may still be done")
    FAILED = _Meaning(
        retriable=False, stored=Stored.MAYBE, text="the server failed; the request may still have been carried out"
    )

    @property
    def retriable(self) -> bool:
        return self.value.retriable

    @property
    def stored(self) -> Stored:
        return self.value.stored


class ClientError(Exception):
    """All errors of the client. `retriable`: the same request may succeed later, and repeating it is safe for
    reads."""

    retriable = False
    is_unreached = False
    """Whether no server was reached, or no answer came."""


class ConnectError(ClientError):
    """There is no connection; nothing was sent."""

    retriable = True
    is_unreached = True


class NoAnswerError(ClientError):
    """The request was sent, but the connection closed or the deadline passed before the answer came."""

    retriable = True
    is_unreached = True


class RefusedError(ClientError):
    """The server refused the request. `code` is the server's, or "" if the client detected the failure."""

    def __init__(self, reason: Refusal, dialect: str, code: str | int, words: str = "") -> None:
        name = code.name if isinstance(code, IntEnum) else f"{dialect} code {code}" if isinstance(code, int) else code
        super().__init__(f"{words or reason.value.text}{f' ({name})' if name else ''}")
        self.reason = reason
        self.dialect = dialect
        self.code = code
        self.words = words

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        return self.reason.retriable


class SignInError(RefusedError):
    """The server does not know the user, or rejects its password or token."""

    def __init__(self, dialect: str, code: str | int, words: str) -> None:
        super().__init__(Refusal.NOT_ALLOWED, dialect, code, words)


class UnknownOutcomeError(ClientError):
    """The record was sent and may be stored, once; `__cause__` says how the answer was lost.

    Sending it again may store it twice. A producer with `retries="at-least-once"` does so automatically.
    """

    is_unreached = True


class UnsupportedError(ClientError):
    """The dialect cannot express the request; the message names the dialects that can."""


class RecordError(ClientError):
    """The dialect cannot carry the record: too large, an unsupported key or header, or an invalid name."""


class BufferFullError(ClientError):
    """The producer's buffer stayed full for as long as `send` may wait."""

    retriable = True


class AbortedError(ClientError):
    """The record's transaction was aborted before the record was acknowledged."""


class ClosedError(ClientError):
    """The client is closed."""
