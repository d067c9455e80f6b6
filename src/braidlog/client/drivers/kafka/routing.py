"""Whom to ask: brokers, leaders, coordinators, as Metadata and FindCoordinator tell; and who we are, said first.

Knows: what the cluster said of itself, and what an answer shows to be wrong of it (`rules.py`). Refuses to know: records, groups'
members, retries: what was forgotten is looked for by the next attempt.
Invariant: a leader or coordinator is asked only if it was told and no answer since has said otherwise.
"""

import secrets
import ssl
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from braidlog.client.drivers.kafka import sasl
from braidlog.client.drivers.kafka.rules import Forget, refused, rule_of
from braidlog.client.drivers.kafka.wire import KafkaWire
from braidlog.client.drivers.link import Link
from braidlog.client.drivers.routed import CONTROL, RoutedDriver
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import Address, NoAnswerError, Refusal, RefusedError, SignInError, UnsupportedError
from braidlog.client.schemes import Target
from braidlog.codec.compression import Compression
from braidlog.wire.kafka.apis import OWN_CLIENT
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import security as s
from braidlog.wire.kafka.rows import Message

T = TypeVar("T")

_SOFTWARE = (OWN_CLIENT, "1")
GROUP, TRANSACTION = 0, 1
"""What a coordinator is asked for by: a group, or a transactional id."""
INT_MAX = 2**31 - 1
_WHO = "who"
"""The connection on which a stranger asks how to introduce itself."""
_ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL's options say."""

    compression: Compression = Compression.NONE
    isolation: int = 0
    mechanism: str = sasl.PLAIN
    session_timeout_ms: int = 10_000

    @property
    def committed_only(self) -> bool:
        return self.isolation == _ISOLATION["read_committed"]


def settings_of(options: dict[str, str]) -> Settings:
    """The settings, or a ValueError that says which options there are."""
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "compression": ("compression", {each.name.lower(): each for each in Compression}),
        "isolation": ("isolation", {**_ISOLATION}),
        "sasl": ("mechanism", {each: each for each in sasl.MECHANISMS}),
    }
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name == "session_timeout_ms" and value.isdecimal():
            found[name] = int(value)
        elif name not in kinds:
            raise ValueError(f"kafka:// takes {', '.join(kinds)} and session_timeout_ms=number, not {name}={value}")
        else:
            field, words = kinds[name]
            if value not in words:
                raise ValueError(f"{name} is one of {', '.join(words)}, not {value!r}")
            found[field] = words[value]
    return Settings(**found)


class Router(RoutedDriver):
    """A driver that finds its way in a cluster."""

    name: ClassVar[str] = "kafka"

    def __init__(self, target: Target, settings: Settings, policy: Policy, tls: ssl.SSLContext | None) -> None:
        super().__init__(target, policy, tls, KafkaWire, self._greet)
        self.settings = settings
        self._brokers: dict[int, Address] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._controller: Address | None = None

    # -- the greeting ----------------------------------------------------------------------------------------

    async def _greet(self, link: Link) -> None:
        told = await link.ask(c.ApiVersionsRequest(*_SOFTWARE), self._policy.connect_timeout)
        if told.error_code == E.UNSUPPORTED_VERSION:
            # The wire has learned which version of the question it understands.
            told = await link.ask(c.ApiVersionsRequest(*_SOFTWARE), self._policy.connect_timeout)
        self.check_code(told.error_code)
        if self._target.principal is not None:
            await self._authenticate(link)

    async def _authenticate(self, link: Link) -> None:
        mechanism, seconds = self.settings.mechanism, self._policy.connect_timeout
        shaken: s.SaslHandshakeResponse = await link.ask(s.SaslHandshakeRequest(mechanism), seconds)
        if shaken.error_code:
            raise refused(
                shaken.error_code, f"the server does not support {mechanism}; supported: {', '.join(shaken.mechanisms)}"
            )
        exchange = sasl.exchange(
            mechanism, self._target.principal or "", self._target.token or "", secrets.token_urlsafe(24)
        )
        token = next(exchange)
        try:
            while True:
                answer: s.SaslAuthenticateResponse = await link.ask(s.SaslAuthenticateRequest(token), seconds)
                if answer.error_code:
                    error = self.refuse(answer.error_code, answer.error_message)
                    raise SignInError(self.name, error.code, error.words)
                token = exchange.send(answer.auth_bytes)
        except StopIteration:
            return
        except sasl.SaslError as wrong:
            raise SignInError(self.name, "", f"{mechanism}: {wrong}") from wrong

    async def asked_for(self) -> list[str]:
        """A Kafka server tells strangers which versions it speaks, and hangs up at their next question."""
        if self._target.principal is not None:
            return []
        try:
            await self.metadata([])
        except NoAnswerError:
            link = await self._links.get(self.home, _WHO)
            told: s.SaslHandshakeResponse = await link.ask(
                s.SaslHandshakeRequest(self.settings.mechanism), self._policy.request_timeout
            )
            self.end_channel(_WHO, "the question is answered")
            return list(told.mechanisms) if told.error_code in (0, E.UNSUPPORTED_SASL_MECHANISM) else []
        return []

    # -- what the cluster says of itself -----------------------------------------------------------------------

    async def metadata(self, topics: Sequence[str] | None) -> c.MetadataResponse:
        """Of these topics, of all of them if None; none is made by asking."""
        named = None if topics is None else [c.MetadataRequestTopic(name=name) for name in topics]
        answer: c.MetadataResponse = await self.ask_checked(c.MetadataRequest(named, allow_auto_topic_creation=False))
        self._learn(answer)
        return answer

    def _learn(self, answer: c.MetadataResponse) -> None:
        self._brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        self._controller = self._brokers.get(answer.controller_id)
        # When the URL's own nodes are gone, those that they told of are asked.
        known = (*self._target.nodes, *self._brokers.values())
        self._nodes = [node for node in dict.fromkeys((*self._nodes, *known)) if node in known]
        for topic in answer.topics:
            for each in topic.partitions:
                place, leader = (topic.name or "", each.partition_index), self._brokers.get(each.leader_id)
                if leader is None:
                    self._leaders.pop(place, None)
                else:
                    self._leaders[place] = leader

    async def describe(self, topic: str) -> c.MetadataResponseTopic:
        answer = await self.metadata([topic])
        for found in answer.topics:
            if found.name == topic and not found.error_code:
                return found
            raise refused(found.error_code or E.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {topic!r}")
        raise refused(E.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {topic!r}")

    async def leader_of(self, topic: str, partition: int) -> Address:
        found = self._leaders.get((topic, partition))
        if found is None:
            numbers = {each.partition_index for each in (await self.describe(topic)).partitions}
            found = self._leaders.get((topic, partition))
            if found is None:
                code = E.LEADER_NOT_AVAILABLE if partition in numbers else E.UNKNOWN_TOPIC_OR_PARTITION
                words = (
                    "no node leads this partition now" if partition in numbers else "the topic has no such partition"
                )
                raise refused(code, words, about=f"{topic}/{partition}")
        return found

    async def coordinator_of(self, name: str, kind: int = GROUP) -> Address:
        found = self._coordinators.get((kind, name))
        if found is None:
            # Until version 3 one key, then several: what a version does not have is not written.
            answer: c.FindCoordinatorResponse = await self.ask(c.FindCoordinatorRequest(name, kind, [name]))
            told = answer.coordinators[0] if answer.coordinators else answer
            self.check_code(told.error_code, told.error_message)
            found = self._coordinators[kind, name] = (told.host, told.port)
        return found

    async def all_brokers(self) -> list[Address]:
        """Those that live; Metadata may name one that died a moment ago."""
        try:
            told: c.DescribeClusterResponse = await self.ask_checked(c.DescribeClusterRequest())
        except UnsupportedError:  # of a server before Kafka 2.8
            await self.metadata([])
            return list(self._brokers.values())
        return [(each.host, each.port) for each in told.brokers]

    # -- asking ------------------------------------------------------------------------------------------------

    async def ask_leader(
        self,
        place: tuple[str, int],
        message: Message,
        channel: str = CONTROL,
        waits_ms: int = 0,
    ) -> Any:  # noqa: ANN401 - any answer
        return await self.ask(message, await self.leader_of(*place), channel, waits_ms)

    async def ask_coordinator(self, group: str, message: Message, channel: str = CONTROL, waits_ms: int = 0) -> Any:  # noqa: ANN401
        return await self.ask(message, await self.coordinator_of(group), channel, waits_ms)

    def checked(self, answer: Any) -> Any:  # noqa: ANN401 - any answer with a code of its own
        """The answer; raises the refusal that its own code is. Codes of its parts are checked by the caller."""
        self.check_code(answer.error_code, getattr(answer, "error_message", None))
        return answer

    async def ask_controller(self, message: Message, waits_ms: int = 0) -> Any:  # noqa: ANN401 - any answer
        if self._controller is None:
            await self.metadata([])
        return await self.ask(message, self._controller, CONTROL, waits_ms)

    @property
    def _timeout_ms(self) -> int:
        """How long the server may wait, for replicas or for the cluster."""
        return min(int(self._policy.request_timeout * 1000), INT_MAX)

    # -- what is wrong -----------------------------------------------------------------------------------------

    def refuse(
        self,
        code: int,
        words: str | None = None,
        *,
        about: str = "",
        place: tuple[str, int] | None = None,
        group: str | None = None,
        transaction: str | None = None,
    ) -> RefusedError:
        """The error of a code; what the code shows to be wrong is forgotten."""
        match rule_of(code).forget:
            case Forget.LEADER if place is not None:
                if self._leaders.pop(place, None) and code == E.UNKNOWN_TOPIC_OR_PARTITION:
                    # The metadata says that this node leads it: the node has not heard of it yet, or it is gone by now.
                    text = f"{place[0]}/{place[1]}: its leader does not know the topic, or not yet"
                    return RefusedError(Refusal.BUSY, self.name, E.UNKNOWN_TOPIC_OR_PARTITION, text)
            case Forget.COORDINATOR:
                self._coordinators.pop((GROUP, group or ""), None)
                self._coordinators.pop((TRANSACTION, transaction or ""), None)
            case Forget.CONTROLLER:
                self._controller = None
            case _:
                pass
        return refused(code, words, about=about or (f"{place[0]}/{place[1]}" if place else ""))

    def check_code(self, code: int, words: str | None = None, **concerned: Any) -> None:  # noqa: ANN401 - as `refuse` takes them
        """Raise the error of a code, unless it is none."""
        if code:
            raise self.refuse(code, words, **concerned)

    def unreachable(self, address: Address) -> None:
        for name in [name for name, at in self._coordinators.items() if at == address]:
            del self._coordinators[name]
        if self._controller == address:
            self._controller = None
        super().unreachable(address)

    def end_channel(self, channel: str, why: str) -> None:
        self._links.end(channel, why)


def only(found: Sequence[T], what: str) -> T:
    """Of one thing that was asked for, the one answer."""
    if len(found) != 1:
        raise RefusedError(
            Refusal.FAILED, "kafka", "", f"the server's answer to {what} has {len(found)} parts where 1 was asked for"
        )
    return found[0]
