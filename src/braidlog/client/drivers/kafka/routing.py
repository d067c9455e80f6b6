"""Routing in a Kafka cluster: brokers, leaders and coordinators from Metadata and FindCoordinator; authentication.

Caches the cluster's metadata, and drops entries that an answer disproves (`rules.py`). Does not handle: records,
members of groups, retries; the next attempt looks up what was dropped.
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
"""The kind of key of a coordinator: a group, or a transactional id."""
INT_MAX = 2**31 - 1
_WHO = "who"
"""The channel for discovering the authentication methods of a server."""
_ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in a URL's options."""

    compression: Compression = Compression.NONE
    isolation: int = 0
    mechanism: str = sasl.PLAIN
    session_timeout_ms: int = 10_000

    @property
    def committed_only(self) -> bool:
        return self.isolation == _ISOLATION["read_committed"]


def settings_of(options: dict[str, str]) -> Settings:
    """Parse the settings; ValueError names the valid options."""
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "compression": ("compression", {each.name.lower(): each for each in Compression}),
        "isolation": ("isolation", {**_ISOLATION}),
        "sasl": ("mechanism", {each: each for each in sasl.MECHANISMS}),
    }
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if name == "session_timeout_ms" and value.isdecimal():
            fields[name] = int(value)
        elif name not in kinds:
            raise ValueError(f"kafka:// takes {', '.join(kinds)} and session_timeout_ms=number, not {name}={value}")
        else:
            field, words = kinds[name]
            if value not in words:
                raise ValueError(f"{name} is one of {', '.join(words)}, not {value!r}")
            fields[field] = words[value]
    return Settings(**fields)


class Router(RoutedDriver):
    """A driver that routes requests to leaders, coordinators and the controller."""

    name: ClassVar[str] = "kafka"

    def __init__(self, target: Target, settings: Settings, policy: Policy, tls: ssl.SSLContext | None) -> None:
        super().__init__(target, policy, tls, KafkaWire, self._greet)
        self.settings = settings
        self._brokers: dict[int, Address] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._controller: Address | None = None

    # -- the greeting ----------------------------------------------------------------------------------------

    async def _greet(self, link: Link) -> None:
        versions = await link.ask(c.ApiVersionsRequest(*_SOFTWARE), self._policy.connect_timeout)
        if versions.error_code == E.UNSUPPORTED_VERSION:
            # The wire has learned which version of this request the server supports.
            versions = await link.ask(c.ApiVersionsRequest(*_SOFTWARE), self._policy.connect_timeout)
        self.check_code(versions.error_code)
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
        """Return the SASL mechanisms of the server. Without authentication a Kafka server answers ApiVersions, then
        closes."""
        if self._target.principal is not None:
            return []
        try:
            await self.metadata([])
        except NoAnswerError:
            link = await self._links.get(self.home, _WHO)
            handshake: s.SaslHandshakeResponse = await link.ask(
                s.SaslHandshakeRequest(self.settings.mechanism), self._policy.request_timeout
            )
            self.end_channel(_WHO, "the authentication methods are known")
            return list(handshake.mechanisms) if handshake.error_code in (0, E.UNSUPPORTED_SASL_MECHANISM) else []
        return []

    # -- metadata ----------------------------------------------------------------------------------------------

    async def metadata(self, topics: Sequence[str] | None) -> c.MetadataResponse:
        """Return the metadata of these topics, of all if None; never creates a topic."""
        named = None if topics is None else [c.MetadataRequestTopic(name=name) for name in topics]
        answer: c.MetadataResponse = await self.ask_checked(c.MetadataRequest(named, allow_auto_topic_creation=False))
        self._learn(answer)
        return answer

    def _learn(self, answer: c.MetadataResponse) -> None:
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._controller = self._brokers.get(answer.controller_id)
        # If the URL's own nodes are unreachable, the brokers from the last metadata are tried.
        known = (*self._target.nodes, *self._brokers.values())
        self._nodes = [node for node in dict.fromkeys((*self._nodes, *known)) if node in known]
        for topic in answer.topics:
            for partition in topic.partitions:
                place, leader = (topic.name or "", partition.partition_index), self._brokers.get(partition.leader_id)
                if leader is None:
                    self._leaders.pop(place, None)
                else:
                    self._leaders[place] = leader

    async def describe(self, topic: str) -> c.MetadataResponseTopic:
        answer = await self.metadata([topic])
        for described in answer.topics:
            if described.name == topic and not described.error_code:
                return described
            raise refused(described.error_code or E.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {topic!r}")
        raise refused(E.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {topic!r}")

    async def leader_of(self, topic: str, partition: int) -> Address:
        leader = self._leaders.get((topic, partition))
        if leader is None:
            numbers = {each.partition_index for each in (await self.describe(topic)).partitions}
            leader = self._leaders.get((topic, partition))
            if leader is None:
                code = E.LEADER_NOT_AVAILABLE if partition in numbers else E.UNKNOWN_TOPIC_OR_PARTITION
                words = (
                    "this partition has no leader now" if partition in numbers else "the topic has no such partition"
                )
                raise refused(code, words, about=f"{topic}/{partition}")
        return leader

    async def coordinator_of(self, name: str, kind: int = GROUP) -> Address:
        address = self._coordinators.get((kind, name))
        if address is None:
            # Until version 3 one key, then several: fields that a version lacks are not written.
            answer: c.FindCoordinatorResponse = await self.ask(c.FindCoordinatorRequest(name, kind, [name]))
            coordinator = answer.coordinators[0] if answer.coordinators else answer
            self.check_code(coordinator.error_code, coordinator.error_message)
            address = self._coordinators[kind, name] = (coordinator.host, coordinator.port)
        return address

    async def all_brokers(self) -> list[Address]:
        """Return live brokers; Metadata may still name a dead one."""
        try:
            described: c.DescribeClusterResponse = await self.ask_checked(c.DescribeClusterRequest())
        except UnsupportedError:  # older than Kafka 2.8
            await self.metadata([])
            return list(self._brokers.values())
        return [(broker.host, broker.port) for broker in described.brokers]

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

    def checked(self, answer: Any) -> Any:  # noqa: ANN401 - any answer with a top-level code
        """Return the answer; raise for its top-level error code. The caller checks the codes of its parts."""
        self.check_code(answer.error_code, getattr(answer, "error_message", None))
        return answer

    async def ask_controller(self, message: Message, waits_ms: int = 0) -> Any:  # noqa: ANN401 - any answer
        if self._controller is None:
            await self.metadata([])
        return await self.ask(message, self._controller, CONTROL, waits_ms)

    @property
    def _timeout_ms(self) -> int:
        """How long the server may wait for replicas or for the cluster."""
        return min(int(self._policy.request_timeout * 1000), INT_MAX)

    # -- errors ------------------------------------------------------------------------------------------------

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
        """Return the error of a code, and drop cached metadata that the code disproves."""
        match rule_of(code).forget:
            case Forget.LEADER if place is not None:
                if self._leaders.pop(place, None) and code == E.UNKNOWN_TOPIC_OR_PARTITION:
                    # The metadata names this node as leader: it does not know the topic yet, or the topic was deleted.
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
        """Raise the error of a code, unless it is NONE."""
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


def only(parts: Sequence[T], what: str) -> T:
    """Return the only part of an answer to a request for one thing."""
    if len(parts) != 1:
        raise RefusedError(
            Refusal.FAILED, "kafka", "", f"the server's answer to {what} has {len(parts)} parts instead of 1"
        )
    return parts[0]
