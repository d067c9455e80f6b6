"""The key-value client for asyncio: `async with braidlog.kv.aio.connect("mayfly://127.0.0.1:7275") as store: ...`

Knows: how to ask, and when to ask again. Refuses to know: bytes, threads (`blocking.py`).
Invariants: what was not sent is tried for as long as the policy says; what was sent and not answered is asked again only if it
changes nothing, or if `retries="at-least-once"` and sending it twice leaves the same as sending it once. A counter is never
incremented twice by the client: such a call ends with `UnknownOutcomeError`.

Calls may be made at once: each has a request id of its own, and none waits for another's answer. `run` sends many in one piece.
"""

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
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import NO_ID, ClientConnection, Request, Response
from braidlog.wire.mayfly.messages import Condition, Consistency

T = TypeVar("T")
P = ParamSpec("P")
Retries = Literal["unknown-outcome", "at-least-once"]

RUN_COMMANDS_MAX = 1000
"""Sent in one piece by `run`; more go piece by piece."""
MOVES_MAX = 3
PLACES_MAX = 10_000
_CHANNEL = "commands"


class MayflyWire(ConnectionWire):
    """Answers are found by their ids."""

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
    """A method that carries out one command, with the command's own parameters."""

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
    """A key-value store, over one connection that is made anew when it is lost: `mayfly://[:token@]host[:port]`, `mayfly+tls://`.

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
            raise ValueError(f"{self._target.scheme}:// is no key-value store; mayfly:// is")
        self._policy = options_of(Policy, policy)
        self._again = retries == "at-least-once"
        context, options = tls_of(self._target, tls)
        if options:
            raise ValueError(f"mayfly:// has no option {', '.join(options)}")
        self._nodes = list(self._target.nodes)
        self._places: dict[bytes, Address] = {}
        greet = self._greet if self._target.token else None
        self._links = Links(Endpoint(lambda: MayflyWire(consistency), self._policy.connect_timeout, context, greet))

    def __repr__(self) -> str:
        return f"<KeyValue {self._target}{' closed' if self._closed else ''}>"

    # -- asking ----------------------------------------------------------------------------------------------

    async def _greet(self, link: Link) -> None:
        assert self._target.token is not None
        answer = await link.ask(m.Auth(self._target.token.encode()), self._policy.request_timeout)
        Command(m.Ping(), lambda _: None).result(answer)

    async def do(self, command: Command[T]) -> T:
        """Carry out one command."""
        return command.result(await self._answer(command))

    async def run(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Carry out many, sent in one piece and in order; a result, or the error that stands for it, for each.

        They are not one: others may come between them, and one that fails does not keep the next from being done. Nothing of
        it is asked again.
        """
        results: list[Any] = []
        for start in range(0, len(commands), RUN_COMMANDS_MAX):
            piece = commands[start : start + RUN_COMMANDS_MAX]
            link = await retry(self._policy, self._link)
            answers = await link.ask_all([command.message for command in piece], self._policy.request_timeout)
            results += [_outcome(command, answer) for command, answer in zip(piece, answers, strict=True)]
        return results

    async def _answer(self, command: Command[Any]) -> m.Message:
        backoff = Backoff(self._policy)
        moves = 0
        while True:
            address = self._places.get(getattr(command.message, "key", b""))
            try:
                link = await self._link(address)
                answer: m.Message = await link.ask(command.message, self._policy.request_timeout)
            except ClientError as error:
                if address is not None and isinstance(error, ConnectError):
                    self._places.clear()
                self._check_again(command, error)
                if not await backoff.pause():
                    raise
                continue
            if not isinstance(answer, m.Moved) or moves >= MOVES_MAX:
                return answer
            moves += 1
            self._note_moved(command.message, answer)

    def _check_again(self, command: Command[Any], error: ClientError) -> None:
        """Raise, unless the command may be asked again."""
        if isinstance(error, NoAnswerError) and not (command.reads or (self._again and command.settles)):
            raise UnknownOutcomeError(f"it may or may not have been done: {error}") from error
        if not error.retriable:
            raise error

    def _note_moved(self, message: m.Message, moved: m.Moved) -> None:
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        self._places[getattr(message, "key", b"")] = (moved.host, moved.port)

    async def _link(self, address: Address | None = None) -> Link:
        try:
            return await self._links.get(address or self._nodes[0], _CHANNEL)
        except ConnectError:
            if address is None:
                self._nodes.append(self._nodes.pop(0))
            raise

    async def open(self) -> Self:
        """See that somebody is there."""
        await retry(self._policy, self._link)
        return self

    def abandon(self) -> None:
        """Stop at once, without a word to the server."""
        self._closed = True
        self._links.close()

    async def _finish(self) -> None:
        """Say goodbye where there is a connection."""
        for link in self._links.opened():
            try:
                await link.ask(m.Quit(), self._policy.connect_timeout)
            except ClientError:
                continue  # it is gone already, which is what was wanted

    # -- commands, as `commands.py` declares them ------------------------------------------------------------

    set = _command(c.set_)
    get = _command(c.get)
    delete = _command(c.delete)
    exists = _command(c.exists)
    expire = _command(c.expire)
    ttl = _command(c.ttl)
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
