"""Each Mayfly command in a line or a few: translate, call the service, translate back.

Knows: which operation a command is, who may ask for it. Refuses to know: bytes, sockets, how keys are kept.
Invariant: before AUTH has succeeded, every request but AUTH itself gets the same answer.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from braidlog.adapters.contract import Conversation
from braidlog.adapters.mayfly.errors import failure
from braidlog.adapters.mayfly.served import ServedConnection, Unserved
from braidlog.adapters.mayfly.services import Services
from braidlog.adapters.routing import Denied, ForwardingAdapter, Need, Route, always
from braidlog.broker.access.authorize import ANONYMOUS, Kind, Operation
from braidlog.broker.keyvalue import operations as o
from braidlog.broker.routing import Broker
from braidlog.model.address import Address
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.model.limits import KV_COLLECTION_BYTES_MAX
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import Burst, Request, write_request
from braidlog.wire.mayfly.messages import ANSWER_BYTES_MAX, Status

assert KV_COLLECTION_BYTES_MAX <= ANSWER_BYTES_MAX, "every list and every hash must fit an answer"

_ONLY: Final = {
    m.Condition.ALWAYS: o.Only.ALWAYS,
    m.Condition.IF_ABSENT: o.Only.IF_ABSENT,
    m.Condition.IF_PRESENT: o.Only.IF_PRESENT,
}


class Translation(NamedTuple):
    """A command as an operation, and the operation's result as an answer."""

    ask: Callable[[Any], o.Operation[Any]]
    answer: Callable[[Any], m.Message]


def _set(message: m.Set) -> o.Set:
    if message.condition is m.Condition.ALWAYS:
        return o.Set(message.key, message.value, message.ttl_seconds)
    return o.Set(message.key, message.value, message.ttl_seconds, _ONLY[message.condition])


def _stored(stored: bool) -> m.Stored:  # noqa: FBT001 - the operation's result
    return m.STORED if stored else m.Stored(stored=False)


def _done(_: object) -> m.Done:
    return m.DONE


def _present(there: bool) -> m.Message:  # noqa: FBT001 - the operation's result
    return m.DONE if there else m.MISSING


TRANSLATIONS: Final[dict[type[m.Message], Translation]] = {
    m.Set: Translation(_set, _stored),
    m.Get: Translation(lambda message: o.Get(message.key), m.Value),
    m.Del: Translation(lambda message: o.Delete(message.key), _done),
    m.Exists: Translation(lambda message: o.Exists(message.key), _present),
    m.Expire: Translation(lambda message: o.Expire(message.key, message.ttl_seconds), _done),
    m.Ttl: Translation(lambda message: o.TimeToLive(message.key), m.TimeLeft),
    m.LPush: Translation(lambda message: o.Push(message.key, o.End.LEFT, message.values), m.Length),
    m.RPush: Translation(lambda message: o.Push(message.key, o.End.RIGHT, message.values), m.Length),
    m.LPop: Translation(lambda message: o.Pop(message.key, o.End.LEFT), m.Value),
    m.RPop: Translation(lambda message: o.Pop(message.key, o.End.RIGHT), m.Value),
    m.LRange: Translation(
        lambda message: o.ListRange(message.key, message.start, message.stop),
        lambda found: m.Values(tuple(found)),
    ),
    m.LLen: Translation(lambda message: o.ListLength(message.key), m.Length),
    m.Incr: Translation(lambda message: o.Increment(message.key), m.Number),
    m.Decr: Translation(lambda message: o.Increment(message.key, -1), m.Number),
    m.IncrBy: Translation(lambda message: o.Increment(message.key, message.delta), m.Number),
    m.HSet: Translation(lambda message: o.HashSet(message.key, message.pairs), m.Count),
    m.HGet: Translation(lambda message: o.HashGet(message.key, message.field), m.Value),
    m.HDel: Translation(lambda message: o.HashDelete(message.key, message.fields), m.Count),
    m.HGetAll: Translation(lambda message: o.HashGetAll(message.key), lambda found: m.Pairs(tuple(found.items()))),
}


_ASKS: Final = {kind: translation.ask for kind, translation in TRANSLATIONS.items()}
_ANSWERS: Final = {kind: translation.answer for kind, translation in TRANSLATIONS.items()}


async def execute(request: Request, services: Services, _: Conversation) -> m.Message:
    translation = TRANSLATIONS[type(request.message)]
    return translation.answer(await services.keyvalue.execute(translation.ask(request.message)))


async def execute_all(burst: Burst, services: Services, _: Conversation, denied: Denied) -> list[m.Message]:
    """In order, at once; the mutations among them become durable together. What may not be done is left out of them."""
    if not denied:
        return await _execute_each(burst.messages, services)
    refused = [denied.get((Kind.KEY, _name(message))) for message in burst.messages]
    allowed = [message for message, error in zip(burst.messages, refused, strict=True) if error is None]
    answers = iter(await _execute_each(allowed, services) if allowed else ())
    return [next(answers) if error is None else failure(error) for error in refused]


async def _execute_each(messages: Sequence[m.Message], services: Services) -> list[m.Message]:
    results = await services.keyvalue.execute_all([_ASKS[type(message)](message) for message in messages])
    return [
        failure(result) if type(result) is BrokerError else _ANSWERS[type(message)](result)
        for message, result in zip(messages, results, strict=True)
    ]


async def authenticate(request: Request, services: Services, conversation: Conversation) -> m.Message:
    """The token alone says who it is; a node that asks nobody takes any."""
    if not services.authorize.required:
        return m.DONE
    message: m.Auth = request.message  # type: ignore[assignment]
    principal = services.authorize.authenticate(message.token) or ANONYMOUS
    if not await conversation.prove(principal, message.token):
        return m.Failure(Status.AUTH_FAILED, "authentication failed")
    conversation.principal = principal
    return m.DONE


async def ping(_: Request, __: Services, ___: Conversation) -> m.Done:
    return m.DONE


async def leave_connection(_: Request, __: Services, conversation: Conversation) -> m.Done:
    conversation.close()
    await conversation.others_answered()
    return m.DONE


async def refuse(request: Request, _: Services, __: Conversation) -> m.Failure:
    message: Unserved = request.message  # type: ignore[assignment]
    return message.failure


async def snapshot(_: Request, services: Services, __: Conversation) -> m.SnapshotTaken:
    done = await services.keyvalue.snapshot()
    return m.SnapshotTaken(done.sequence, done.keys, done.bytes, done.taken_ms, done.wal_bytes_freed)


async def memory(_: Request, services: Services, __: Conversation) -> m.MemoryUse:
    used = services.keyvalue.memory()
    return m.MemoryUse(used.used_bytes, used.limit_bytes, used.peak_bytes, used.keys, used.resident_bytes)


async def statistics(_: Request, services: Services, __: Conversation) -> m.Statistics:
    counts = services.keyvalue.stats()
    return m.Statistics(**{name: getattr(counts, name) for name in m.Statistics.__struct_fields__})


async def cluster_info(_: Request, services: Services, __: Conversation) -> m.ClusterState:
    mode = "standalone" if services.routing.is_alone else "cluster"
    nodes = len(services.routing.numbers)
    return m.ClusterState(mode=mode, node=services.placement.node, nodes=nodes, epoch=services.routing.epoch)


async def cluster_nodes(_: Request, services: Services, conversation: Conversation) -> m.Nodes:
    routing = services.routing

    def show(each: Broker) -> m.Node:
        name = services.placement.node if each.number == routing.own_number else str(each.number)
        return m.Node(name, m.NodeState.DEAD if each.is_fenced else m.NodeState.ALIVE, each.host, each.port)

    return m.Nodes(tuple(show(each) for each in routing.brokers(MayflyAdapter.dialect, conversation.address)))


async def leave(_: Request, __: Services, ___: Conversation) -> m.Message:
    raise BrokerError(Reason.UNAVAILABLE, "this node is alone: it has nobody to leave its keys to")


def _name(message: Any) -> str:  # noqa: ANN401 - those with a key have it under this name
    """A key as rules name it. A rule's prefix is whole characters, so bytes that are no text cannot be mistaken for it."""
    key: bytes = message.key
    return key.decode("utf-8", "surrogateescape")


def _on_key(operation: Operation) -> Route:
    need = Need(operation, lambda request, _: (_name(request.message),), Kind.KEY)
    return Route(execute, None, needs=(need,), coordinated=always)


def _on_keys(operation: Operation) -> Route:
    """Of requests that came together, each is allowed by itself."""
    need = Need(operation, lambda burst, _: map(_name, burst.messages), Kind.KEY)
    return Route(execute_all, None, each=(need,), coordinated=always)


_SOME_KEY = (Need(Operation.DESCRIBE, lambda _, __: (None,), Kind.KEY),)
"""What tells of all keys together is for who may use some."""


_READS: Final = (m.Get, m.Exists, m.Ttl, m.LRange, m.LLen, m.HGet, m.HGetAll)


class MayflyAdapter(ForwardingAdapter):
    """Mayfly behind a listener. Its clients match answers by request id, so that none waits for another.

    Those of version 2 know MOVED; what others ask is handed to the node that keeps the keys.
    """

    dialect = "mayfly"
    uses = Services
    ordered = False
    routes: ClassVar[Mapping[type, Route]] = {
        **{kind: _on_key(Operation.READ if kind in _READS else Operation.WRITE) for kind in TRANSLATIONS},
        m.Auth: Route(authenticate, None),
        m.Ping: Route(ping, None),
        m.Quit: Route(leave_connection, None),
        Unserved: Route(refuse, None),
        m.Snapshot: Route(snapshot, Operation.CLUSTER),
        m.Memory: Route(memory, None, needs=_SOME_KEY),
        m.Stats: Route(statistics, None, needs=_SOME_KEY),
        m.ClusterInfo: Route(cluster_info, None, needs=_SOME_KEY),
        m.ClusterNodes: Route(cluster_nodes, None, needs=_SOME_KEY),
        m.Leave: Route(leave, Operation.CLUSTER),
    }
    bursts: ClassVar[Mapping[bool, Route]] = {
        False: _on_keys(Operation.READ),
        True: _on_keys(Operation.WRITE),
    }

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._is_guarded = services.authorize.required

    def open(self) -> ServedConnection:
        return ServedConnection()

    def operation(self, request: Request | Burst) -> str:
        """Commands that came in one piece are counted as one; the store counts each."""
        return type(request.message).__name__ if type(request) is Request else "Burst"

    def handle(self, conversation: Conversation, request: Request | Burst) -> Coroutine[Any, Any, Any]:
        route = self.routes[type(request.message)] if type(request) is Request else self.bursts[request.mutates]  # type: ignore[union-attr]
        if self._is_guarded and conversation.principal == ANONYMOUS and route.handler is not authenticate:
            return _require_authentication()
        return self.serve(route, conversation, request)

    def forwards(self, request: Request | Burst) -> bool:
        return super().forwards(request) and (isinstance(request, Burst) or request.version == 1)

    def frame_of(self, request: Request | Burst) -> bytes:
        if isinstance(request, Request):
            return write_request(request, request.version)
        return b"".join(write_request(each, 1) for each in request.requests)

    def failure(self, request: Request | Burst, error: Exception) -> m.Message | list[m.Message]:
        moved = None if self.forwards(request) else self._serving(error)
        answer = failure(error, moved, self._services.routing.epoch)
        return [answer] * len(request.ids) if isinstance(request, Burst) else answer

    def _serving(self, error: Exception) -> Address | None:
        """Where the node is that serves what was refused here, if it is known."""
        routing = self._services.routing
        if isinstance(error, NotLeaderError):
            return routing.leader_address(error.topic, error.number, self.dialect)
        is_coordinated = isinstance(error, BrokerError) and error.reason is Reason.NOT_COORDINATOR
        return routing.address(routing.coordinator, self.dialect) if is_coordinated else None


async def _require_authentication() -> m.Message:
    raise BrokerError(Reason.NOT_AUTHENTICATED, "authentication is required")
