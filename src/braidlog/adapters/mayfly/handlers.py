"""Handlers of Mayfly's commands: translate, call the service, translate back.

Does not handle: bytes, sockets, storage of keys.
Invariant: before a successful AUTH, every other request gets the same answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from braidlog.adapters.contract import Conversation, Relayed, answer_of
from braidlog.adapters.mayfly.errors import failure
from braidlog.adapters.mayfly.served import RejectedRequest, SessionConnection
from braidlog.adapters.mayfly.services import Services
from braidlog.adapters.routing import Denied, ForwardingAdapter, Need, Route, RoutedAdapter
from braidlog.broker.keys.key_service import LEVELS, Scan
from braidlog.broker.keys.key_service import operations as o
from braidlog.broker.routing import Broker
from braidlog.model.address import Address, is_ip_address
from braidlog.model.errors import BrokerError, ElsewhereError, NotLeaderError, Reason, is_elsewhere
from braidlog.model.limits import KV_COLLECTION_BYTES_MAX
from braidlog.security.authentication import NOT_PROVED
from braidlog.security.authorization import ANONYMOUS, AUTHENTICATION_REQUIRED, Kind, Operation
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.bursts import write_burst
from braidlog.wire.mayfly.connection import Burst, Request, write_frame, write_request
from braidlog.wire.mayfly.messages import ANSWER_BYTES_MAX, Status
from braidlog.wire.mayfly.operations import BY_REQUEST

assert KV_COLLECTION_BYTES_MAX <= ANSWER_BYTES_MAX, "every list and every hash must fit an answer"

_ONLY: Final = {
    m.Condition.ALWAYS: o.Only.ALWAYS,
    m.Condition.IF_ABSENT: o.Only.IF_ABSENT,
    m.Condition.IF_PRESENT: o.Only.IF_PRESENT,
}


class Translation(NamedTuple):
    """A command's operation, and the answer of its result."""

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


_READS: Final = frozenset((m.Get, m.Exists, m.Ttl, m.LRange, m.LLen, m.HGet, m.HGetAll))
_BURST_KINDS: Final = {
    m.Get: o.Kind.GET, m.Set: o.Kind.SET, m.Del: o.Kind.DELETE, m.Incr: o.Kind.INCREMENT, m.Decr: o.Kind.DECREMENT
}  # fmt: skip
_KINDS: Final = bytes.maketrans(bytes(BY_REQUEST[kind].number for kind in _BURST_KINDS), bytes(_BURST_KINDS.values()))


def execute(request: Request, services: Services, _: Conversation) -> Any:  # noqa: ANN401 - an answer, or a coroutine
    """On a single node a read does not wait, nor does a write without a sync."""
    kind, keyvalue = type(request.message), services.keyvalue
    translation = TRANSLATIONS[kind]
    if keyvalue.clustered is None:
        if kind in _READS:
            return translation.answer(keyvalue.read(translation.ask(request.message)))
        if keyvalue.changes_at_once:
            return translation.answer(keyvalue.change(translation.ask(request.message)))
    return _execute(translation, request, services)


async def _execute(translation: Translation, request: Request, services: Services) -> m.Message:
    asked = translation.ask(request.message)
    return translation.answer(await services.keyvalue.execute(asked, LEVELS[request.consistency]))


def execute_burst(burst: Burst, services: Services, _: Conversation, denied: Denied) -> Any:  # noqa: ANN401 - answers, or a coroutine
    """Execute the requests in order, in one step; their writes become durable together. Requests without permission
    are skipped.

    Writes that need not wait are answered without a coroutine, because their answers are short. Values that are read
    may be large, and are counted in the slower path.
    """
    columns = o.Columns(burst.mutates, burst.kinds.translate(_KINDS), burst.keys, burst.values, burst.ttls)
    if columns.mutates and not denied and services.keyvalue.changes_at_once:
        return _answers(services.keyvalue.change_columns(columns))
    return _execute_burst(burst, columns, services, denied)


async def _execute_burst(burst: Burst, columns: o.Columns, services: Services, denied: Denied) -> Any:  # noqa: ANN401
    level = LEVELS[burst.consistency]
    if not denied:
        return _answers(await services.keyvalue.execute_columns(columns, level))
    refusals = [denied.get((Kind.KEY, _text(key))) for key in burst.keys]
    return _answers((await services.keyvalue.execute_columns(columns.without(refusals), level)).among(refusals))


class Elsewhere(NamedTuple):
    """Answers to a burst, some of whose rows other nodes serve."""

    answers: list[Any]
    rows: list[int]
    """Rows that other nodes serve; `answers` has the `ElsewhereError` in their places."""


def _answers(results: o.Results) -> list[Any] | Elsewhere:
    """Return results for the encoder: results unchanged, and messages in place of errors; errors for other nodes stay
    errors.
    """
    elsewhere = []
    for row in results.refused:
        error = results.found[row]
        if is_elsewhere(error):
            elsewhere.append(row)
        else:
            results.found[row] = failure(error)
    return Elsewhere(results.found, elsewhere) if elsewhere else results.found


async def scan(request: Request, services: Services, conversation: Conversation) -> m.Names:
    """Keys that the client may not read are omitted from the page."""
    message: m.Scan = request.message  # type: ignore[assignment]
    asked = Scan(message.slot, message.position, message.after, message.prefix, message.count)
    found = await services.keyvalue.scan(asked, LEVELS[request.consistency])
    if services.authorize.is_free:
        return m.Names(found.slots, found.position, found.after, tuple(found.names))

    def is_shown(name: bytes) -> bool:
        return services.authorize.is_allowed(conversation.principal, Operation.READ, _text(name), Kind.KEY)

    after = found.after if is_shown(found.after) else b""
    return m.Names(found.slots, found.position, after, tuple(filter(is_shown, found.names)))


async def authenticate(request: Request, services: Services, conversation: Conversation) -> m.Message:
    """The token alone identifies the user; a node without access control accepts any token."""
    if not services.authorize.required:
        return m.DONE
    message: m.Auth = request.message  # type: ignore[assignment]
    principal = services.authorize.authenticate(message.token) or ANONYMOUS
    if not await conversation.prove(principal, message.token):
        return m.Failure(Status.AUTH_FAILED, NOT_PROVED)
    conversation.principal = principal
    return m.DONE


def ping(_: Request, __: Services, ___: Conversation) -> m.Done:
    return m.DONE


async def leave_connection(_: Request, __: Services, conversation: Conversation) -> m.Done:
    conversation.close()
    await conversation.on_other_responses()
    return m.DONE


def refuse(request: Request, _: Services, __: Conversation) -> m.Failure:
    message: RejectedRequest = request.message  # type: ignore[assignment]
    return message.failure


async def snapshot(_: Request, services: Services, __: Conversation) -> m.SnapshotTaken:
    done = await services.keyvalue.snapshot()
    return m.SnapshotTaken(done.sequence, done.keys, done.bytes, done.taken_ms, done.wal_bytes_freed)


def memory(_: Request, services: Services, __: Conversation) -> m.MemoryUse:
    used = services.keyvalue.memory()
    return m.MemoryUse(used.used_bytes, used.limit_bytes, used.peak_bytes, used.keys, used.resident_bytes)


async def statistics(_: Request, services: Services, __: Conversation) -> m.Statistics:
    counts = await services.key_counts.gathered()
    return m.Statistics(**{name: getattr(counts, name) for name in m.Statistics.__struct_fields__})


def cluster_info(_: Request, services: Services, __: Conversation) -> m.ClusterState:
    mode = "cluster" if services.routing.has_other_nodes else "standalone"
    nodes = len(services.routing.numbers)
    return m.ClusterState(mode=mode, node=services.placement.node, nodes=nodes, epoch=services.routing.epoch)


_STATES: Final = {
    (False, False): m.NodeState.ALIVE,
    (False, True): m.NodeState.LEAVING,
    (True, False): m.NodeState.DEAD,
    (True, True): m.NodeState.DEAD,
}
"""The node's state: fenced by others, or being drained."""


def cluster_nodes(_: Request, services: Services, conversation: Conversation) -> m.Nodes:
    routing = services.routing

    def show(each: Broker) -> m.Node:
        name = services.placement.node if each.number == routing.own_number else str(each.number)
        return m.Node(name, _STATES[each.is_fenced, each.is_draining], each.host, each.port)

    return m.Nodes(tuple(show(each) for each in routing.brokers(MayflyAdapter.dialect, conversation.address)))


def leave(_: Request, services: Services, __: Conversation) -> m.Message:
    services.placement.leave_cluster()
    return m.DONE


def _name(message: Any) -> str:  # noqa: ANN401 - those with a key have it under this name
    """Return a key as text for rules. Rule prefixes are whole characters, so bytes that are not UTF-8 cannot match by
    mistake.
    """
    return _text(message.key)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _on_key(operation: Operation) -> Route:
    need = Need(operation, lambda request, _: (_name(request.message),), Kind.KEY)
    return Route(execute, None, needs=(need,))


def _on_keys(operation: Operation) -> Route:
    """Requests of one burst are authorized one by one."""
    need = Need(operation, lambda burst, _: map(_text, burst.keys), Kind.KEY)
    return Route(execute_burst, None, each=(need,))


_READS_SOME_KEY = (Need(Operation.READ, lambda _, __: (None,), Kind.KEY),)
_SOME_KEY = (Need(Operation.DESCRIBE, lambda _, __: (None,), Kind.KEY),)
"""Requests about all keys together need permission for some keys."""


class MayflyAdapter(ForwardingAdapter):
    """Mayfly behind a listener. Its clients match answers by request id, so none waits for another.

    Clients of version 2 understand MOVED; requests of others are forwarded to the leader of the key's log.
    """

    dialect = "mayfly"
    uses = Services
    ordered = False
    routes: ClassVar[Mapping[type, Route]] = {
        **{kind: _on_key(Operation.READ if kind in _READS else Operation.WRITE) for kind in TRANSLATIONS},
        m.Scan: Route(scan, None, needs=_READS_SOME_KEY),
        m.Auth: Route(authenticate, None),
        m.Ping: Route(ping, None),
        m.Quit: Route(leave_connection, None),
        RejectedRequest: Route(refuse, None),
        m.Snapshot: Route(snapshot, Operation.CLUSTER, is_bounded=False),
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

    def open(self) -> SessionConnection:
        return SessionConnection()

    def operation(self, request: Request | Burst) -> str:
        """A burst is counted as one request; the store counts each operation."""
        return type(request.message).__name__ if type(request) is Request else "Burst"

    def handle(self, conversation: Conversation, request: Request | Burst) -> Any:  # noqa: ANN401
        route = self.routes[type(request.message)] if type(request) is Request else self.bursts[request.mutates]  # type: ignore[union-attr]
        if self._is_guarded and conversation.principal == ANONYMOUS and route.handler is not authenticate:
            raise BrokerError(Reason.NOT_AUTHENTICATED, AUTHENTICATION_REQUIRED)
        if type(request) is Burst and self._forwarding.calls is not None:
            return self._serve_burst(route, conversation, request)
        return self.serve(route, conversation, request)

    def should_forward(self, request: Request, error: ElsewhereError) -> bool:
        """Answer MOVED to version 2, if the other node's address is known."""
        return request.version == 1 or self._moved(error) is None

    def frame_of(self, request: Request) -> bytes:
        return write_request(request, request.version)

    async def _serve_burst(self, route: Route, conversation: Conversation, burst: Burst) -> Any:  # noqa: ANN401
        """Serve local keys immediately; request keys of all other nodes together."""
        answered: list[Any] | Elsewhere = await answer_of(RoutedAdapter.serve, self, route, conversation, burst)
        if type(answered) is not Elsewhere:
            return answered
        answers, elsewhere = answered
        requests = burst.requests
        asked = [at for at in elsewhere if self.should_forward(requests[at], answers[at])]
        works = [
            self._forward(self.routes[type(requests[at].message)], conversation, requests[at], answers[at])
            for at in asked
        ]
        for at, answer in zip(asked, await self._forwarding.together(works) if works else (), strict=True):
            answers[at] = answer
        for at in elsewhere:
            if isinstance(refused := answers[at], BrokerError):
                answers[at] = self.failure(requests[at], refused)
        return Relayed(write_burst(burst.packed_ids, answers, _frame))

    def failure(self, request: Request | Burst, error: Exception) -> m.Message | list[m.Message]:
        moved = None if request.version == 1 else self._moved(error)
        answer = failure(error, moved, self._services.routing.epoch)
        return [answer] * len(request) if isinstance(request, Burst) else answer

    def _moved(self, error: Exception) -> Address | None:
        """Return the address of the node that serves a rejected request, if it is known and is an IP address: names
        cannot be sent.
        """
        if not isinstance(error, NotLeaderError):
            return None
        found = self._services.routing.leader_address(error.topic, error.number, self.dialect)
        return found if found is not None and is_ip_address(found[0]) else None


def _frame(request_id: int, answer: m.Message | Relayed) -> bytes:
    return answer.data if isinstance(answer, Relayed) else write_frame(request_id, answer)
