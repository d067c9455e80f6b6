"""What can go wrong for a client: few types, each with what it says about the request it belongs to.

Knows: whether a request was sent, answered, refused, and what may be tried again. Refuses to know: any dialect's codes (a driver
translates them and keeps the dialect's own words).
Invariant: an error never claims more than is known. What was sent and not answered is never called "not stored".

| type | was it sent? | may it be stored? | again? |
|---|---|---|---|
| `ConnectError` | no | no | yes |
| `NoAnswerError` | yes | nobody knows | reads: yes. Writes: see `UnknownOutcomeError` |
| `RefusedError` | yes, and answered | as its reason says | as its reason says |
| `SignInError`, one of them | no: who asks was not let in | no | with another password or token |
| `UnknownOutcomeError` | yes | nobody knows | only by who can live with a record stored twice |
| `UnsupportedError`, `RecordError` | no: the dialect cannot say it | no | never |
| `BufferFullError` | no | no | when there is room |
| `AbortedError` | maybe | no reader of what is committed sees it | in another transaction |
| `ClosedError` | no | no | never |
"""

from enum import Enum, IntEnum
from typing import NamedTuple

Address = tuple[str, int]


class Stored(Enum):
    """What an answer tells about the records of the request."""

    NO = "no"
    MAYBE = "maybe"


class _Meaning(NamedTuple):
    retriable: bool
    stored: Stored
    text: str


class Refusal(Enum):
    """Why a server did not do what was asked, in no dialect's words."""

    TOPIC_NOT_FOUND = _Meaning(retriable=False, stored=Stored.NO, text="no such topic or partition")
    TOPIC_EXISTS = _Meaning(retriable=False, stored=Stored.NO, text="the topic exists already")
    NOT_LEADER = _Meaning(retriable=True, stored=Stored.NO, text="another node leads here")
    REJOIN = _Meaning(retriable=False, stored=Stored.NO, text="the group has changed; join again")
    OFFSET_OUT_OF_RANGE = _Meaning(retriable=False, stored=Stored.NO, text="no such offset; it may have been deleted")
    FENCED = _Meaning(retriable=False, stored=Stored.NO, text="the producer's sequence or epoch is not the log's")
    TOO_LARGE = _Meaning(retriable=False, stored=Stored.NO, text="larger than the server accepts")
    INVALID = _Meaning(retriable=False, stored=Stored.NO, text="the server rejects the request as invalid")
    NOT_ALLOWED = _Meaning(retriable=False, stored=Stored.NO, text="not allowed")
    BUSY = _Meaning(retriable=True, stored=Stored.NO, text="the server is busy; nothing was done, try again")
    TIMED_OUT = _Meaning(retriable=True, stored=Stored.MAYBE, text="not done in time; it may still be done")
    FAILED = _Meaning(
        retriable=False, stored=Stored.MAYBE, text="the server failed; what was asked may be done all the same"
    )

    @property
    def retriable(self) -> bool:
        return self.value.retriable

    @property
    def stored(self) -> Stored:
        return self.value.stored


class ClientError(Exception):
    """All errors of the client. `retriable`: the same request may succeed later, and asking again does no harm to a reader."""

    retriable = False
    is_unreached = False
    """Whether it is the lack of a server, or of its answer."""


class ConnectError(ClientError):
    """There is no connection; nothing was sent."""

    retriable = True
    is_unreached = True


class NoAnswerError(ClientError):
    """The request was sent; the connection or the time was over before the answer came."""

    retriable = True
    is_unreached = True


class RefusedError(ClientError):
    """The server answered, and it was no. `code` is its own, "" where the client found out by itself."""

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
    """The server does not know the user, or not by this password or token."""

    def __init__(self, dialect: str, code: str | int, words: str) -> None:
        super().__init__(Refusal.NOT_ALLOWED, dialect, code, words)


class UnknownOutcomeError(ClientError):
    """The record was sent and may be stored, once; its `__cause__` says how the answer was lost.

    Sending it again may store it twice. A producer with `retries="at-least-once"` does so by itself.
    """

    is_unreached = True


class UnsupportedError(ClientError):
    """The dialect has no way to say this; the message names those that have."""


class RecordError(ClientError):
    """The dialect cannot carry this: too large, a key or a header where it has none, a name it cannot write."""


class BufferFullError(ClientError):
    """The producer's buffer stayed full for as long as `send` may wait."""

    retriable = True


class AbortedError(ClientError):
    """The record's transaction was aborted before the record was acknowledged."""


class ClosedError(ClientError):
    """The client is closed."""
