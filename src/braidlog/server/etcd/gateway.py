"""Client of etcd's HTTP/JSON gateway.

Does not handle: the meaning of keys.
Invariants: the client never repeats a write that may have reached a member, because only the caller knows whether that
is safe. It repeats a read at the other members, up to twice at each.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

import h11
import msgspec

from braidlog.cluster.etcd.port import (
    Change,
    EtcdAwayError,
    EtcdCompactedError,
    EtcdError,
    EtcdLeaseError,
    EtcdRefusedError,
    Holds,
    Outcome,
    Put,
    Range,
    Reading,
)
from braidlog.model.clock import DurationHistogram
from braidlog.server.etcd import messages
from braidlog.server.etcd.etcd_process import check_version
from braidlog.server.etcd.http_connection import Answer, Connection, Endpoint, parse_endpoint

T = TypeVar("T")

IDLE_CONNECTIONS_MAX: Final = 4
ROUNDS: Final = 2
BYTES_PER_SECOND_MIN: Final = 1_000_000
_UNREACHED = (OSError, TimeoutError, h11.LocalProtocolError)


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the connection to etcd."""

    endpoints: list[str]
    user: str = ""
    password: str = ""
    token: str = ""
    """Sent as is, instead of user and password."""
    read_seconds_max: float = 1.0
    write_seconds_max: float = 0.25
    """Limit of a proposal, which is safe to repeat: another member may be faster."""


class Gateway:
    """An `Etcd` for one node. The endpoint that answered last is tried first."""

    def __init__(self, settings: GatewaySettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._tls = tls
        self._endpoints = [parse_endpoint(url) for url in settings.endpoints]
        assert self._endpoints
        self._idle: list[Connection] = []
        self._token = settings.token
        self._watches: set[GatewayWatch] = set()
        self.seconds = DurationHistogram()
        """Durations of answered calls."""

    # -- the port --------------------------------------------------------------------------------------------

    async def read(self, keys: Range, *, limit: int = 0, revision: int = 0, keys_only: bool = False) -> Reading:
        request = messages.RangeRequest(keys.first, keys.end, limit, revision, keys_only)
        answer = await self._ask("kv/range", request, messages.RangeAnswer)
        return Reading([kv.item() for kv in answer.kvs], answer.header.revision, answer.more)

    async def write(
        self, puts: Sequence[Put], *, deletes: Sequence[Range] = (), conditions: Sequence[Holds] = ()
    ) -> Outcome:
        answer = await self._tell("kv/txn", messages.transaction(puts, deletes, conditions), messages.TxnAnswer)
        return Outcome(answer.succeeded, answer.header.revision)

    async def compact(self, revision: int) -> None:
        with contextlib.suppress(EtcdCompactedError):  # by another, further
            await self._tell("kv/compaction", {"revision": revision}, messages.AnyAnswer)

    async def grant(self, seconds: int) -> int:
        return (await self._tell("lease/grant", {"TTL": seconds}, messages.GrantAnswer)).ID

    async def keep_alive(self, lease: int) -> bool:
        answer = await self._tell("lease/keepalive", {"ID": lease}, messages.KeepAliveAnswer)
        return answer.result.TTL > 0

    async def revoke(self, lease: int) -> None:
        with contextlib.suppress(EtcdLeaseError):
            await self._tell("lease/revoke", {"ID": lease}, messages.AnyAnswer)

    async def watch(self, ranges: Sequence[Range], after: int) -> "GatewayWatch":
        requests = [messages.watch_request(number, keys, after + 1) for number, keys in enumerate(ranges, 1)]
        body = b"".join(map(msgspec.json.encode, requests))
        connection = await self._first_reached()
        try:
            async with asyncio.timeout(self._settings.read_seconds_max):
                await connection.send("/v3/watch", body, self._token)
        except _UNREACHED as error:
            connection.close()
            raise EtcdAwayError(_error_text(connection.endpoint, error)) from error
        watch = GatewayWatch(connection)
        self._watches = {each for each in self._watches if not each.is_over} | {watch}
        return watch

    async def members(self) -> list[messages.EtcdMember]:
        return (await self._ask("cluster/member/list", {}, messages.MembersAnswer)).members

    async def remove_member(self, number: int) -> None:
        """etcd rejects this if too few of the remaining members have started."""
        await self._tell("cluster/member/remove", {"ID": number}, messages.AnyAnswer)

    async def check_versions(self) -> None:
        """Raise for member versions that are known to lose data; at least one member must answer."""
        failures = []
        for endpoint in self._endpoints:
            try:
                async with asyncio.timeout(self._settings.read_seconds_max):
                    answer = await self._exchange(await self._take(endpoint), "/version", b"")
                check_version(msgspec.json.decode(answer.body, type=messages.VersionAnswer).etcdserver, str(endpoint))
            except _UNREACHED as error:
                failures.append(_error_text(endpoint, error))
            except msgspec.MsgspecError as error:
                raise EtcdRefusedError(f"{endpoint} is not etcd: {error}") from error
        if len(failures) == len(self._endpoints):
            raise EtcdAwayError("; ".join(failures))

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        for watch in self._watches:
            watch.stop()

    # -- one call --------------------------------------------------------------------------------------------

    async def _ask(self, call: str, request: object, kind: type[T]) -> T:
        """Send a read, which any member may answer and which may be repeated."""
        body = msgspec.json.encode(request)
        failures: list[str] = []
        for endpoint in [*self._endpoints] * ROUNDS:
            try:
                async with asyncio.timeout(self._settings.read_seconds_max):
                    return await self._call(await self._take(endpoint), call, body, kind)
            except _UNREACHED as error:
                failures.append(_error_text(endpoint, error))
            except EtcdAwayError as error:
                failures.append(str(error))
            self._ask_last(endpoint)
        raise EtcdAwayError("; ".join(dict.fromkeys(failures)))

    async def _tell(self, call: str, request: object, kind: type[T]) -> T:
        """Send a write once, to the first reachable member."""
        body = msgspec.json.encode(request)
        connection = await self._first_reached()
        try:
            async with asyncio.timeout(self._settings.write_seconds_max + len(body) / BYTES_PER_SECOND_MIN):
                return await self._call(connection, call, body, kind)
        except _UNREACHED as error:
            self._ask_last(connection.endpoint)
            raise EtcdAwayError(_error_text(connection.endpoint, error)) from error
        except EtcdAwayError:
            self._ask_last(connection.endpoint)
            raise

    async def _first_reached(self) -> Connection:
        failures = []
        for endpoint in list(self._endpoints):
            try:
                async with asyncio.timeout(self._settings.read_seconds_max):
                    return await self._take(endpoint)
            except _UNREACHED as error:
                failures.append(_error_text(endpoint, error))
                self._ask_last(endpoint)
        raise EtcdAwayError("; ".join(failures))

    async def _call(self, connection: Connection, call: str, body: bytes, kind: type[T]) -> T:
        answer = await self._exchange(connection, f"/v3/{call}", body)
        if self._settings.user and messages.is_signed_out(answer):  # rejected before the call was processed
            self._token = ""
            answer = await self._exchange(await self._take(connection.endpoint), f"/v3/{call}", body)
        return messages.read_answer(answer, kind, str(connection.endpoint))

    async def _sign_in(self, connection: Connection) -> None:
        request = {"name": self._settings.user, "password": self._settings.password}
        await connection.send("/v3/auth/authenticate", msgspec.json.encode(request), "")
        answer = await connection.receive()
        self._token = messages.read_answer(answer, messages.SignInAnswer, str(connection.endpoint)).token
        if not connection.is_reusable():
            raise ConnectionError(f"{connection.endpoint} closed the connection")

    async def _exchange(self, connection: Connection, path: str, body: bytes) -> Answer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await connection.send(path, body, self._token)
            answer = await connection.receive()
        except BaseException:
            connection.close()
            raise
        self.seconds.note(loop.time() - began)
        if connection.is_reusable() and len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _take(self, endpoint: Endpoint) -> Connection:
        """A signed-in connection."""
        idle = next((each for each in self._idle if each.endpoint == endpoint), None)
        if idle is not None:
            self._idle.remove(idle)
            if idle.is_closing():
                idle.close()
                idle = None
        if idle is None:
            idle = await Connection.open(endpoint, self._tls)
        if self._settings.user and not self._token:
            try:
                await self._sign_in(idle)
            except BaseException:
                idle.close()
                raise
        return idle

    def _ask_last(self, endpoint: Endpoint) -> None:
        if self._endpoints[0] == endpoint:
            self._endpoints.append(self._endpoints.pop(0))


class GatewayWatch:
    """A watch as one endless response."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lines: AsyncIterator[Answer] = connection.lines()
        self.is_over = False

    async def next(self) -> Sequence[Change]:
        member = str(self._connection.endpoint)
        try:
            async for line in self._lines:
                result = messages.read_answer(line, messages.WatchAnswer, member).result
                if result.compact_revision:
                    raise EtcdCompactedError(f"{member} has compacted revisions before {result.compact_revision}")
                if result.canceled:
                    raise EtcdAwayError(f"{member} ended the watch: {result.cancel_reason}")
                if result.events:
                    return [event.change() for event in result.events]
        except _UNREACHED as error:
            self.stop()
            raise EtcdAwayError(_error_text(self._connection.endpoint, error)) from error
        except EtcdError:
            self.stop()
            raise
        raise EtcdAwayError(f"{member} ended the watch")

    def stop(self) -> None:
        self.is_over = True
        self._connection.close()


def _error_text(endpoint: Endpoint, error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"{endpoint} does not answer"
    return str(error) if str(endpoint) in str(error) else f"{endpoint}: {error}"
