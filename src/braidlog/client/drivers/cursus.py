"""The cursus driver: binary batches with keys, idempotent producers, groups.

It maps cursus's error codes, and follows the redirects in `LEADER_IS` and `host= port=`. Does not handle: sockets,
retries, choosing new producer names.
"""

import ssl
from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from braidlog.client.drivers.contract import (
    Acks,
    Batch,
    BatchLimits,
    Capabilities,
    ConsumedRecord,
    Fetched,
    FetchRequest,
    GroupInfo,
    GroupMember,
    Headers,
    MemberName,
    Membership,
    Placed,
    Span,
)
from braidlog.client.drivers.link import ConnectionWire, Link
from braidlog.client.drivers.routed import CONTROL, PRODUCE, RoutedDriver, fetch_channel
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import Address, ClientError, NoAnswerError, RecordError, Refusal, RefusedError, SignInError
from braidlog.client.schemes import Target
from braidlog.model.address import read_address
from braidlog.model.record import Header, NewRecord
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import OBJECTS_MAX, RECORD_BYTES_MIN, STRING_BYTES_MAX, BatchRecord
from braidlog.wire.cursus.batch import Batch as WireBatch
from braidlog.wire.cursus.connection import ClientConnection
from braidlog.wire.cursus.failures import ErrorCode as E
from braidlog.wire.cursus.failures import Failure, failure_line, parse_failure_line

REASONS: dict[str, Refusal] = {
    E.UNKNOWN_COMMAND: Refusal.INVALID,
    E.EMPTY_COMMAND: Refusal.INVALID,
    E.MALFORMED_INPUT: Refusal.INVALID,
    E.DECODE_FAILED: Refusal.INVALID,
    E.FRAME_TOO_LARGE: Refusal.TOO_LARGE,
    E.UNEXPECTED_ARGUMENT: Refusal.INVALID,
    E.DUPLICATE_ARGUMENT: Refusal.INVALID,
    E.INVALID_ACKS: Refusal.INVALID,
    E.TOPIC_NOT_FOUND: Refusal.TOPIC_NOT_FOUND,
    E.INVALID_TOPIC: Refusal.INVALID,
    E.INVALID_PARTITIONS: Refusal.INVALID,
    E.CREATE_TOPIC_FAILED: Refusal.INVALID,
    E.PARTITION_NOT_FOUND: Refusal.TOPIC_NOT_FOUND,
    E.OFFSET_OUT_OF_RANGE: Refusal.OFFSET_OUT_OF_RANGE,
    E.NOT_LEADER: Refusal.NOT_LEADER,
    E.NOT_COORDINATOR: Refusal.NOT_LEADER,
    E.GROUP_NOT_FOUND: Refusal.REJOIN,
    E.MEMBER_NOT_FOUND: Refusal.REJOIN,
    E.GEN_MISMATCH: Refusal.REJOIN,
    E.NOT_OWNER: Refusal.REJOIN,
    E.REBALANCE_REQUIRED: Refusal.REJOIN,
    E.OFFSET_REGRESSION: Refusal.INVALID,
    E.STALE_PRODUCER_EPOCH: Refusal.FENCED,
    E.IDEMPOTENCY_GAP: Refusal.FENCED,
    E.RECORD_TOO_LARGE: Refusal.TOO_LARGE,
    E.NOT_ENOUGH_REPLICAS: Refusal.TIMED_OUT,
    E.TIMED_OUT: Refusal.TIMED_OUT,
    E.EVENT_SOURCING_NOT_ENABLED: Refusal.INVALID,
    E.VERSION_CONFLICT: Refusal.INVALID,
    E.SNAPSHOT_VERSION_EXCEEDS_STREAM: Refusal.INVALID,
    E.TRANSACTION_NOT_FOUND: Refusal.INVALID,
    E.INVALID_TRANSACTION_STATE: Refusal.INVALID,
    E.INVALID_AUTH: Refusal.NOT_ALLOWED,
    E.AUTHENTICATION_REQUIRED: Refusal.NOT_ALLOWED,
    E.AUTHENTICATION_FAILED: Refusal.NOT_ALLOWED,
    E.NOT_AUTHORIZED_FOR_TOPIC: Refusal.NOT_ALLOWED,
    E.NOT_AUTHORIZED_FOR_OPERATION: Refusal.NOT_ALLOWED,
    E.DISTRIBUTION_NOT_ENABLED: Refusal.INVALID,
    E.DISTRIBUTION_REQUIRED: Refusal.INVALID,
    E.LEADER_ELECTION_REJECTED: Refusal.INVALID,
    E.COMMAND_FAILED: Refusal.FAILED,
}
_ABSENT = (E.TOPIC_NOT_FOUND, E.PARTITION_NOT_FOUND)
_ABOUT_ARGUMENTS = ("missing_", "invalid_")
_ACKS = {Acks.LEADER: r.Acks.LEADER.value, Acks.ALL: r.Acks.ALL.value}
_EPOCH = 0
"""Each producer has its own name and never takes over from another, so the epoch is constant."""

_EVENT_HEADERS = {
    "eventType": ("event_type", 0),
    "schemaVersion": ("schema_version", 31),
    "aggregateVersion": ("aggregate_version", 63),
    "metadata": ("metadata", 0),
}
"""Header → the record field that carries it, and the bits of a number; 0 means text."""
_BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Far below a frame: an idempotent batch becomes one batch of the log, which has its own limit (16 MiB by default)."""
_RECORD_OVERHEAD_BYTES = RECORD_BYTES_MIN + 64  # with the producer's name
_READ_RECORDS_MAX = 10_000
_RECORD_BYTES_GUESS = 256


class CursusDriver(RoutedDriver):
    name: ClassVar[str] = "cursus"
    capabilities = Capabilities(
        keys=True,
        headers=Headers.EVENT,
        idempotence=True,
        groups=True,
        group_admin=True,
        deletes=True,
    )

    def __init__(
        self, target: Target, options: dict[str, str], policy: Policy, tls: ssl.SSLContext | None = None
    ) -> None:
        compression = options.pop("compression", "none")
        if options:
            raise ValueError(f"cursus:// takes the option compression, not {', '.join(options)}")
        ClientConnection(compression=compression)  # raises for an unknown codec now, not at the first connection
        greet = None if target.principal is None else self._authenticate
        super().__init__(target, policy, tls, lambda: ConnectionWire(ClientConnection(compression=compression)), greet)
        self._coordinators: dict[str, Address] = {}
        self._look_again: set[tuple[str, int]] = set()

    async def _authenticate(self, link: Link) -> None:
        message = r.Auth(self._target.principal or "", self._target.token or "")
        answer = await link.ask(message, self._policy.connect_timeout)
        if isinstance(answer, Failure):
            error = self._refused(answer)
            raise SignInError(self.name, error.code, error.words)

    # -- leaders and coordinators ----------------------------------------------------------------------------

    async def _ask_leader(self, topic: str, partition: int, message: Any, channel: str, waits_ms: int = 0) -> Any:  # noqa: ANN401
        place = topic, partition
        if place in self._look_again:
            await self._find_leader(topic, partition)
        answer = await self.ask(message, self.leader(topic, partition), channel, waits_ms)
        failure = _failure(answer)
        if failure is not None and failure.code == E.NOT_LEADER:
            self._leaders.pop(place, None)
            leader = read_address(failure.get("LEADER_IS") or "")
            if leader is not None:
                self._leaders[place] = leader
            else:
                self._look_again.add(place)
        if failure is not None and failure.code in _ABSENT and place in self._leaders:
            # Another node named this node as leader: it does not know the topic yet, or the topic was deleted.
            del self._leaders[place]
            self._look_again.add(place)
            text = f"{topic}/{partition}: its leader does not know the topic, or not yet"
            raise RefusedError(Refusal.BUSY, self.name, failure.code, text)
        return self.checked(answer)

    async def _find_leader(self, topic: str, partition: int) -> None:
        answer: a.TopicMetadata = self.checked(await self.ask(r.GetMetadata(topic)))
        leader = read_address(answer.leaders[partition]) if partition < len(answer.leaders) else None
        if leader is not None:
            self._leaders[topic, partition] = leader
        self._look_again.discard((topic, partition))

    async def _ask_coordinator(self, group: str, message: Any) -> Any:  # noqa: ANN401 - any answer
        answer = await self.ask(message, self._coordinators.get(group))
        failure = _failure(answer)
        if failure is not None and failure.code == E.NOT_COORDINATOR:
            coordinator = read_address(f"{failure.get('host')}:{failure.get('port')}")
            if coordinator is not None:
                self._coordinators[group] = coordinator
        return self.checked(answer)

    def unreachable(self, address: Address) -> None:
        for group in [group for group, at in self._coordinators.items() if at == address]:
            del self._coordinators[group]
        super().unreachable(address)

    def checked(self, answer: Any) -> Any:  # noqa: ANN401 - any answer
        failure = _failure(answer)
        if failure is not None:
            raise self._refused(failure)
        return answer

    def _refused(self, failure: Failure) -> RefusedError:
        reason = REASONS.get(failure.code)
        if reason is None:
            reason = Refusal.INVALID if failure.code.startswith(_ABOUT_ARGUMENTS) else Refusal.FAILED
        _, _, fields = failure_line(failure).partition(" ")
        words = failure.get("reason") or (f"{reason.value.text}: {fields}" if fields else "")
        return RefusedError(reason, self.name, failure.code, words)

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int) -> None:
        # In this dialect CREATE of an existing topic succeeds, and may even add partitions.
        if topic in await self.list_topics():
            raise RefusedError(Refusal.TOPIC_EXISTS, self.name, "", f"topic {topic!r} exists already")
        await self.ask_checked(r.Create(topic, partitions))

    async def delete_topic(self, topic: str) -> None:
        await self.ask_checked(r.Delete(topic))

    async def list_topics(self) -> list[str]:
        return sorted((await self.ask_checked(r.ListTopics())).topics)

    async def partitions(self, topic: str) -> int:
        answer: a.TopicMetadata = await self.ask_checked(r.GetMetadata(topic))
        if len({*answer.leaders}) > 1:  # several nodes: ask each leader directly, not through another node
            leaders = {(topic, number): read_address(leader) for number, leader in enumerate(answer.leaders)}
            self._leaders |= {place: leader for place, leader in leaders.items() if leader is not None}
        return answer.partitions

    async def span(self, topic: str, partition: int) -> Span:
        answer: a.OffsetList = await self._ask_leader(topic, partition, r.ListOffsets(topic, partition), CONTROL)
        for offsets in answer.offsets:
            if offsets.partition == partition:
                return Span(offsets.earliest, offsets.latest)
        raise RefusedError(Refusal.TOPIC_NOT_FOUND, self.name, "", f"topic {topic!r} has no partition {partition}")

    # -- records ---------------------------------------------------------------------------------------------

    def limits(self, topic: str) -> BatchLimits:  # noqa: ARG002 - every topic has the same
        return BatchLimits(_BATCH_BYTES_MAX, OBJECTS_MAX, _BATCH_BYTES_MAX)

    def weigh(self, record: NewRecord) -> int:
        size = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        return size + sum(len(value or b"") for _, value in record.headers) if record.headers else size

    def check(self, topic: str, record: NewRecord) -> int:
        if record.key is not None and not 1 <= len(record.key) <= STRING_BYTES_MAX:
            raise RecordError(f"a key has 1 to {STRING_BYTES_MAX} bytes in cursus, not {len(record.key)}")
        _fields(record.headers)
        return super().check(topic, record)

    async def produce(self, batch: Batch) -> Sequence[Placed | ClientError]:
        message = _wire_batch(batch)
        answer = await self._ask_leader(batch.topic, batch.partition, message, PRODUCE)
        if not isinstance(answer, a.Ack) or answer.status != "OK":
            raise NoAnswerError(f"cursus acknowledged with {answer!r}, which does not give the result of the batch")
        place = batch.topic, batch.partition
        if place in self._leaders and (leader := read_address(answer.leader)) is not None:
            self._leaders[place] = leader  # the contacted node may have forwarded the batch
        base = answer.last_offset - len(batch.records) + 1
        return [Placed(batch.topic, batch.partition, base + at) for at in range(len(batch.records))]

    async def fetch(self, request: FetchRequest) -> Fetched:
        records_max = min(max(request.bytes_max // _RECORD_BYTES_GUESS, 1), _READ_RECORDS_MAX)
        message = r.Consume(*request.place, request.offset, records_max=records_max, wait_ms=request.wait_ms)
        if (who := request.member) is not None:
            message = replace(message, member=who.member, group=who.group, generation=who.generation)
        channel = fetch_channel(request.slot)
        answer: WireBatch = await self._ask_leader(*request.place, message, channel, request.wait_ms)
        records = [_consumed(*request.place, record) for record in answer.records]
        return Fetched(records, records[-1].offset + 1 if records else request.offset)

    # -- offsets and groups ----------------------------------------------------------------------------------

    async def commit(self, group: str, topic: str, offsets: dict[int, int], member: Membership | None) -> None:
        if member is not None:
            entries = tuple(r.PartitionOffset(partition, offset) for partition, offset in offsets.items())
            message = r.BatchCommit(topic, group, member.member, member.generation, entries)
            await self._ask_coordinator(group, message)
            return
        for partition, offset in offsets.items():
            await self._ask_coordinator(group, r.CommitOffset(topic, partition, group, offset))

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        answer: a.CommittedOffset = await self._ask_coordinator(group, r.FetchOffset(topic, partition, group))
        return answer.offset or None

    async def join(self, group: str, topics: Sequence[str], who: MemberName) -> Membership:
        (topic,) = topics
        answer: a.Assignment = await self._ask_coordinator(group, r.JoinGroup(topic, group, who.name))
        places = tuple((topic, number) for number in answer.assignments)
        return Membership(group, (topic,), answer.member, answer.generation, places)

    async def heartbeat(self, membership: Membership) -> None:
        message = r.Heartbeat(membership.topics[0], membership.group, membership.member, membership.generation)
        await self._ask_coordinator(membership.group, message)

    async def leave(self, membership: Membership) -> None:
        message = r.LeaveGroup(membership.topics[0], membership.group, membership.member, membership.generation)
        await self._ask_coordinator(membership.group, message)

    async def list_groups(self) -> list[str]:
        return sorted((await self.ask_checked(r.ListGroups())).groups)

    async def describe_group(self, group: str) -> GroupInfo:
        answer: a.GroupDescription = await self._ask_coordinator(group, r.GroupStatus(group))
        members = tuple(GroupMember(member.member_id, member.assignments) for member in answer.members)
        topics = tuple(name for name in answer.topic_name.split(",") if name)
        return GroupInfo(group, answer.state, answer.generation, topics, members)


def _failure(answer: Any) -> Failure | None:  # noqa: ANN401 - any answer
    """Return the failure in an answer. An acknowledgement reports that a producer was fenced."""
    if isinstance(answer, a.Ack) and answer.status == "ERROR" and answer.error:
        return parse_failure_line(answer.error)
    return answer if isinstance(answer, Failure) else None


def _wire_batch(batch: Batch) -> WireBatch:
    identity = batch.identity
    first = identity.sequence if identity else 0
    records = tuple(
        BatchRecord(
            record.value or b"",
            record.key or b"",
            sequence=first + at if identity else 0,
            producer_id=identity.producer if identity else "",
            epoch=_EPOCH,
            **(_fields(record.headers) if record.headers else {}),
        )
        for at, record in enumerate(batch.records)
    )
    return WireBatch(
        batch.topic,
        batch.partition,
        records,
        _ACKS[batch.acks],
        identity is not None,
        first,
        first + len(records) - 1 if identity else 0,
    )


def _fields(headers: tuple[Header, ...]) -> dict[str, Any]:
    """Return a record's event fields; `RecordError` for any other header."""
    fields: dict[str, Any] = {}
    for name, value in headers:
        if name not in _EVENT_HEADERS or not value:
            raise RecordError(f"cursus supports only the headers {Headers.EVENT.value}, with a value; not {name!r}")
        field, bits = _EVENT_HEADERS[name]
        try:
            parsed = int(value) if bits else value.decode()
        except ValueError as error:
            raise RecordError(f"cursus cannot carry the header {name!r}: {error}") from error
        if isinstance(parsed, int) and not 0 < parsed < 2**bits:
            raise RecordError(f"the header {name!r} must be a number from 1 to {2**bits - 1} in cursus, not {parsed}")
        fields[field] = parsed
    return fields


def _consumed(topic: str, partition: int, record: BatchRecord) -> ConsumedRecord:
    headers: tuple[Header, ...] = ()
    if record.event_type or record.schema_version or record.aggregate_version or record.metadata:
        fields = ((name, getattr(record, field)) for name, (field, _) in _EVENT_HEADERS.items())
        headers = tuple((name, str(value).encode()) for name, value in fields if value)
    return ConsumedRecord(topic, partition, record.offset, record.key or None, record.payload, headers)
