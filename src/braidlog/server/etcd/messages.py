"""JSON bodies of etcd's HTTP gateway: keys and values in base64, numbers as strings, zeros omitted.

Covers etcd 3.4 to 3.7 and the meaning of its errors. Does not handle: connections.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from braidlog.cluster.etcd.port import (
    Change,
    EtcdAwayError,
    EtcdCompactedError,
    EtcdError,
    EtcdLeaseError,
    EtcdRefusedError,
    Holds,
    Item,
    Put,
    Range,
)
from braidlog.server.etcd.http_connection import Answer

T = TypeVar("T")

# Codes of gRPC.
_INVALID: Final = 3
_NOT_FOUND: Final = 5
_DENIED: Final = 7
_EXHAUSTED: Final = 8
_FAILED_PRECONDITION: Final = 9
_OUT_OF_RANGE: Final = 11
_UNAUTHENTICATED: Final = 16
_SIGNED_OUT: Final = "invalid auth token"
_SIGN_IN: Final = ("authentication failed", "user name is empty")
_BUSY: Final = "too many requests"


class Header(msgspec.Struct):
    revision: int = 0


class KeyValue(msgspec.Struct):
    key: bytes
    mod_revision: int = 0
    value: bytes = b""

    def item(self) -> Item:
        return Item(self.key, self.value, self.mod_revision)


class RangeRequest(msgspec.Struct, omit_defaults=True):
    key: bytes
    range_end: bytes
    limit: int = 0
    revision: int = 0
    keys_only: bool = False


class RangeAnswer(msgspec.Struct):
    header: Header
    kvs: list[KeyValue] = []
    more: bool = False


class TxnAnswer(msgspec.Struct):
    header: Header
    succeeded: bool = False


class GrantAnswer(msgspec.Struct):
    ID: int


class LeaseKeptAlive(msgspec.Struct):
    TTL: int = 0


class KeepAliveAnswer(msgspec.Struct):
    result: LeaseKeptAlive


class SignInAnswer(msgspec.Struct):
    token: str


class VersionAnswer(msgspec.Struct):
    etcdserver: str


class EtcdMember(msgspec.Struct):
    """`name` and `clientURLs` are empty until the member's first start."""

    ID: int
    name: str = ""
    clientURLs: list[str] = []  # noqa: N815 - etcd's name


class MembersAnswer(msgspec.Struct):
    members: list[EtcdMember] = []


class HealthAnswer(msgspec.Struct):
    health: str = ""
    reason: str = ""


class AnyAnswer(msgspec.Struct):
    """A response without relevant fields."""


class WatchEvent(msgspec.Struct):
    kv: KeyValue
    type: str = "PUT"

    def change(self) -> Change:
        return Change(self.kv.key, None if self.type == "DELETE" else self.kv.value, self.kv.mod_revision)


class WatchResult(msgspec.Struct):
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: list[WatchEvent] = []


class WatchAnswer(msgspec.Struct):
    result: WatchResult


class Failure(msgspec.Struct):
    """The gateway's response to a failed call; `message` in all versions, `error` in 3.4."""

    message: str = ""
    error: Any = None
    code: int = 0


def transaction(puts: Sequence[Put], deletes: Sequence[Range], conditions: Sequence[Holds]) -> dict[str, Any]:
    return {
        "compare": [
            {"key": key, "target": "VERSION", "version": 0}
            if value is None
            else {"key": key, "target": "VALUE", "value": value}
            for key, value in conditions
        ],
        "success": [
            *({"request_put": {"key": put.key, "value": put.value, "lease": put.lease}} for put in puts),
            *({"request_delete_range": {"key": keys.first, "range_end": keys.end}} for keys in deletes),
        ],
    }


def watch_request(number: int, keys: Range, from_revision: int) -> dict[str, Any]:
    wanted = {"key": keys.first, "range_end": keys.end, "start_revision": from_revision, "watch_id": number}
    return {"create_request": wanted}


def is_signed_out(answer: Answer) -> bool:
    return answer.status != 200 and (answer.status == 401 or _SIGNED_OUT in _failure(answer).message)


def read_answer(answer: Answer, kind: type[T], member: str) -> T:
    """Decode a member's response, or raise the exception for its error."""
    if answer.status != 200:
        raise _error(_failure(answer), member)
    try:
        return msgspec.json.decode(answer.body, type=kind, strict=False)
    except msgspec.MsgspecError as error:
        failure = _failure(answer)
        if failure.message:  # from a streaming call: the status was sent before the failure
            raise _error(failure, member) from error
        raise EtcdAwayError(f"{member} sent a response that is not etcd's: {error}") from error


def _failure(answer: Answer) -> Failure:
    try:
        failure = msgspec.json.decode(answer.body, type=Failure, strict=False)
    except msgspec.MsgspecError:
        return Failure(f"HTTP {answer.status}")
    if isinstance(failure.error, dict):  # from a streaming call
        return msgspec.convert(failure.error, Failure, strict=False)
    return failure


def _error(failure: Failure, member: str) -> EtcdError:
    text = f"{member}: {failure.message}"
    if failure.code == _OUT_OF_RANGE and "compacted" in failure.message:
        return EtcdCompactedError(text)
    if failure.code == _NOT_FOUND and "lease" in failure.message:
        return EtcdLeaseError(text)
    if failure.code == _EXHAUSTED and _BUSY not in failure.message:
        return EtcdRefusedError(f"{text}; free it: etcdctl compact, etcdctl defrag, then etcdctl alarm disarm")
    if failure.code in (_DENIED, _UNAUTHENTICATED) or any(each in failure.message for each in _SIGN_IN):
        return EtcdRefusedError(f"{text}; check user, password and token in [cluster]")
    if failure.code in (_INVALID, _OUT_OF_RANGE, _FAILED_PRECONDITION):
        return EtcdRefusedError(text)
    return EtcdAwayError(text)  # no leader, timed out, or an unknown error: the write may have succeeded
