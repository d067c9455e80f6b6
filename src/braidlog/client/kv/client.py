"""The key-value client for asyncio: `async with braidlog.kv.aio.connect("mayfly://127.0.0.1:7275") as store: ...`

Does not handle: bytes, threads (`blocking.py`). A request that was not sent is retried for as long as the policy
allows. A request that was sent and not answered is retried only if it changes nothing, or if
`retries="at-least-once"` and it is idempotent. The client never increments a counter twice: such a call raises
`UnknownOutcomeError`.

Calls may run concurrently: each has its own request id, and none waits for the answer to another. `run` sends many
together.

In a cluster one node leads each key. With version 1 any node serves the request through that node. Version 2 is used
if the URL names several nodes or a consistency. Its nodes answer with the key's leader (MOVED), which the client
caches for all keys of the slot.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, get_args

from braidlog.client.drivers.link import ConnectionWire, Endpoint, Link, Links
from braidlog.client.engine.closing import AsyncConnection
from braidlog.client.engine.retry import Backoff, Policy, retry
from braidlog.client.errors import (
    Address,
    ClientError,
    ClosedError,
    ConnectError,
    NoAnswerError,
    RefusedError,
    UnknownOutcomeError,
)
from braidlog.client.kv import commands as c
from braidlog.client.kv.commands import Command
from braidlog.client.schemes import parse_url, tls_of
from braidlog.client.session import connecting, options_of
from braidlog.codec.errors import ProtocolError
from braidlog.kv.replicated.slots import slot_of
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import NO_ID, ClientConnection, Request, Response
from braidlog.wire.mayfly.messages import Condition, Consistency

T = TypeVar("T")
P = ParamSpec("P")
Retries = Literal["unknown-outcome", "at-least-once"]

RUN_COMMANDS_MAX = 1000
"""The commands that `run` sends in one piece; more are split."""
MOVES_MAX = 3
"""Redirects that are followed immediately; after these, the nodes do not know the leader yet, and the client waits."""
_CHANNEL = "commands"


class MayflyWire(ConnectionWire):
    """Matches answers to requests by id."""

    def __init__(self, consistency: Consistency | None) -> None:
        super().__init__(ClientConnection())
        self._consistency = consistency or Consistency.QUORUM
        self._version = 1 if consistency is None else 2

    def ask(self, message: m.Message) -> tuple[bytes, Hashable]:
        request_id = self._connection.next_id()
        request = Request(request_id, message, self._consistency)
        return self._connection.request(request, version=self._version), request_id

    def answer(self, event: Response) -> tuple[Hashable, Any]:
        if event.id == NO_ID:
            raise ProtocolError(f"an answer that belongs to no request: {event.message}")
        return event.id, event.message


def _command(make: Callable[P, Command[T]]) -> Callable[Concatenate["KeyValue", P], Coroutine[Any, Any, T]]:
    """Return a method that carries out one command, with the command's parameters."""

    @wraps(make)
    async def call(store: "KeyValue", /, *args: P.args, **named: P.kwargs) -> T:
        return await store.do(make(*args, **named))

    own = signature(make)
    (result,) = get_args(own.return_annotation)
    store = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    call.__signature__ = own.replace(parameters=[store, *own.parameters.values()], return_annotation=result)  # type: ignore[attr-defined]
    call.__name__ = make.__name__.rstrip("_")
    return call


class KeyValue(AsyncConnection):
    """A key-value store: `mayfly://[:token@]host[:port][,host[:port]…]`, `mayfly+tls://`. Reconnects automatically.

    `policy` takes the fields of `Policy`, in seconds.

    with braidlog.kv.connect("mayfly://127.0.0.1:7275") as store:
        store.set("greeting", "hello")
    """

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | None = None,
        consistency: Consistency | None = None,
        retries: Retries = "unknown-outcome",
        **policy: float,
    ) -> None:
        self._target = parse_url(url)
        if self._target.scheme != "mayfly":
            raise ValueError(f"{self._target.scheme}:// is not a key-value store; use mayfly://")
        self._policy = options_of(Policy, policy)
        self._again = retries == "at-least-once"
        context, options = tls_of(self._target, tls)
        if options:
            raise ValueError(f"mayfly:// has no option {', '.join(options)}")
        self._nodes = list(self._target.nodes)
        self._places: dict[int, Address] = {}
        """Slot → its leader, as far as known."""
        if len(self._nodes) > 1 and consistency is None:
            consistency = Consistency.QUORUM
        greet = self._greet if self._target.token else None
        self._links = Links(Endpoint(lambda: MayflyWire(consistency), self._policy.connect_timeout, context, greet))

    def __repr__(self) -> str:
        return f"<KeyValue {self._target}{' closed' if self._closed else ''}>"

    # -- sending ---------------------------------------------------------------------------------------------

    async def _greet(self, link: Link) -> None:
        assert self._target.token is not None
        answer = await link.ask(m.Auth(self._target.token.encode()), self._policy.request_timeout)
        Command(m.Ping(), lambda _: None).result(answer)

    async def do(self, command: Command[T]) -> T:
        """Carry out one command."""
        return command.result(await self._answer(command))

    async def run(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Carry out many commands, sent together and in order; return a result, or an error, for each.

        They are not atomic: commands of other clients may run in between, and a failed command does not stop the next
        ones. Commands for several nodes are sent to all of them concurrently. A command that may have been done is
        not retried.
        """
        results: list[Any] = []
        for start in range(0, len(commands), RUN_COMMANDS_MAX):
            results += await self._run(commands[start : start + RUN_COMMANDS_MAX])
        return results

    async def _run(self, piece: Sequence[Command[Any]]) -> list[Any]:
        answers: list[Any] = [None] * len(piece)
        left, backoff, moves = list(range(len(piece))), Backoff(self._policy), 0
        while left:
            groups: dict[Address | None, list[int]] = {}
            for at in left:
                groups.setdefault(self._place(piece[at]), []).append(at)
            await asyncio.gather(*(self._ask_group(place, group, piece, answers) for place, group in groups.items()))
            left = [at for at in left if self._was_not_done(piece[at], answers[at])]
            moves += any(isinstance(answers[at], m.Moved) for at in left)
            waits = moves > MOVES_MAX or any(not isinstance(answers[at], m.Moved) for at in left)
            if left and waits and not await backoff.pause():
                break
        return [_outcome(command, answer) for command, answer in zip(piece, answers, strict=True)]

    async def _ask_group(
        self, place: Address | None, group: list[int], piece: Sequence[Command[Any]], answers: list[Any]
    ) -> None:
        try:
            link = await self._link(place)
            replies = await link.ask_all([piece[at].message for at in group], self._policy.request_timeout)
        except ConnectError as error:
            replies = [error] * len(group)
        for at, answer in zip(group, replies, strict=True):
            answers[at] = answer

    def _was_not_done(self, command: Command[Any], answer: Any) -> bool:  # noqa: ANN401 - or an error
        """Return whether the command must be retried, on another node or later; updates the cached leader."""
        slot = _slot(command)
        if isinstance(answer, m.Moved) and slot is not None:
            self._places[slot] = answer.host, answer.port
            return True
        if isinstance(answer, m.TopologyChanged | ConnectError):
            self._forget(self._place(command))
            return True
        return False

    def _place(self, command: Command[Any]) -> Address | None:
        slot = _slot(command)
        return None if slot is None else self._places.get(slot)

    def _forget(self, place: Address | None) -> None:
        """Drop a node from the leader cache: it is unreachable or no longer leads."""
        self._places = {slot: each for slot, each in self._places.items() if each != place}

    async def _answer(self, command: Command[Any]) -> m.Message:
        backoff = Backoff(self._policy)
        moves = 0
        while True:
            try:
                link = await self._link(self._place(command))
                answer: m.Message = await link.ask(command.message, self._policy.request_timeout)
            except ClientError as error:
                self._was_not_done(command, error)
                self._check_again(command, error)
                if not await backoff.pause():
                    raise
                continue
            if not self._was_not_done(command, answer):
                return answer
            moves += isinstance(answer, m.Moved)
            waits = moves > MOVES_MAX or not isinstance(answer, m.Moved)
            if waits and not await backoff.pause():
                return answer

    def _check_again(self, command: Command[Any], error: ClientError) -> None:
        """Raise unless the command may be retried."""
        if isinstance(error, NoAnswerError) and not (command.reads or (self._again and command.settles)):
            raise UnknownOutcomeError(f"it may or may not have been done: {error}") from error
        if not error.retriable:
            raise error

    async def _link(self, address: Address | None = None) -> Link:
        try:
            return await self._links.get(address or self._nodes[0], _CHANNEL)
        except ConnectError:
            if address is None:
                self._nodes.append(self._nodes.pop(0))
            raise

    async def open(self) -> Self:
        """Check that a server answers."""
        await retry(self._policy, self._link)
        return self

    def abandon(self) -> None:
        """Stop immediately, without a QUIT to the server."""
        self._closed = True
        self._links.close()

    async def _finish(self) -> None:
        """Send QUIT on each open connection."""
        for link in self._links.opened():
            try:
                await link.ask(m.Quit(), self._policy.connect_timeout)
            except ClientError:
                continue  # the connection is closed already

    # -- commands, as `commands.py` declares them ------------------------------------------------------------

    set = _command(c.set_)
    get = _command(c.get)
    delete = _command(c.delete)
    exists = _command(c.exists)
    expire = _command(c.expire)
    ttl = _command(c.ttl)
    scan = _command(c.scan)
    lpush = _command(c.lpush)
    rpush = _command(c.rpush)
    lpop = _command(c.lpop)
    rpop = _command(c.rpop)
    lrange = _command(c.lrange)
    llen = _command(c.llen)
    incr = _command(c.incr)
    hset = _command(c.hset)
    hget = _command(c.hget)
    hdel = _command(c.hdel)
    hgetall = _command(c.hgetall)
    ping = _command(c.ping)
    stats = _command(c.stats)
    memory = _command(c.memory)
    snapshot = _command(c.snapshot)


def _slot(command: Command[Any]) -> int | None:
    message = command.message
    if isinstance(message, m.Scan):
        return message.slot
    key: bytes | None = getattr(message, "key", None)
    return None if key is None else slot_of(key)


def _outcome(command: Command[Any], answer: Any) -> Any:  # noqa: ANN401 - a result, or an error
    if isinstance(answer, NoAnswerError) and not command.reads:
        unknown = UnknownOutcomeError(f"it may or may not have been done: {answer}")
        unknown.__cause__ = answer
        return unknown
    if isinstance(answer, ClientError):
        return answer
    try:
        return command.result(answer)
    except RefusedError as error:
        return error


connect = connecting(KeyValue)

__all__ = ["ClosedError", "Condition", "Consistency", "KeyValue", "connect"]
