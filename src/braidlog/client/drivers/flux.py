"""The flux driver: one line per record, many lines in flight.

Answers come in any order, and the server chooses the partition. Does not handle: sockets, retries.

Flux has no command for a topic's partition count or for the start of a log, so the driver probes. A CONSUME far
beyond the end returns the high watermark if the partition exists, and an error otherwise. The log starts at the
lowest offset that can be read.
"""

import ssl
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any, ClassVar

from braidlog.client.drivers.contract import (
    Acks,
    Batch,
    BatchLimits,
    Capabilities,
    Commits,
    ConsumedRecord,
    Fetched,
    FetchRequest,
    MemberName,
    Membership,
    Placed,
    Span,
)
from braidlog.client.drivers.link import ConnectionWire
from braidlog.client.drivers.routed import PRODUCE, RoutedDriver, fetch_channel
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import Address, ClientError, RecordError, Refusal, RefusedError
from braidlog.client.schemes import Target
from braidlog.codec.errors import ProtocolError
from braidlog.model.address import read_address
from braidlog.model.record import NewRecord
from braidlog.wire.flux import messages as m
from braidlog.wire.flux.connection import ClientConnection
from braidlog.wire.flux.messages import ErrorCode as E
from braidlog.wire.flux.operations import WAIT_MS_MAX
from braidlog.wire.flux.records import LINE_BYTES_MAX
from braidlog.wire.flux.tokens import I64_MAX, KEY_BYTES_MAX

REASONS: dict[str, Refusal] = {
    E.BAD_REQUEST: Refusal.INVALID,
    E.UNKNOWN_COMMAND: Refusal.INVALID,
    E.REPLICATION_TIMEOUT: Refusal.TIMED_OUT,
    E.NOT_LEADER: Refusal.NOT_LEADER,
    E.GENERATION_MISMATCH: Refusal.REJOIN,
    E.UNAVAILABLE: Refusal.FAILED,
}
_ACKS = {Acks.LEADER: m.Acks.LEADER, Acks.ALL: m.Acks.ALL}
_NOT_AN_ANSWER = "0"
_LINE_OVERHEAD_BYTES = 400  # id, command, the longest topic and the options
_PROBED_AT_ONCE = 16
_RECORD_BYTES_GUESS = 128
_B64 = m.Encoding.BASE64


class FluxWire(ConnectionWire):
    """Matches answers to requests by id."""

    def __init__(self, *, is_introduced: bool = False) -> None:
        super().__init__(ClientConnection())
        self._is_introduced = is_introduced
        self._greeting: str | None = None

    def ask(self, message: m.Request) -> tuple[bytes, Hashable]:
        if self._is_introduced and self._greeting is None:
            self._greeting = message.correlation_id
        return self._connection.request(message), message.correlation_id

    def answer(self, event: m.Response) -> tuple[Hashable, Any]:
        if event.correlation_id == _NOT_AN_ANSWER and self._greeting:
            # Authentication failures carry no id; only the greeting is sent before them.
            return self._greeting, event.answer
        self._greeting = ""
        if event.correlation_id == _NOT_AN_ANSWER:
            # The server could not parse one of our lines and does not say which: its request would wait until its
            # deadline.
            raise ProtocolError(f"the server could not read a request: {event.answer}")
        return event.correlation_id, event.answer


class FluxDriver(RoutedDriver):
    name: ClassVar[str] = "flux"
    capabilities = Capabilities(
        keys=True, null_values=True, places=False, batches=False, commits=Commits.MEMBERS, groups=True
    )

    def __init__(
        self, target: Target, options: dict[str, str], policy: Policy, tls: ssl.SSLContext | None = None
    ) -> None:
        if options:
            raise ValueError(f"flux:// takes no options: {', '.join(options)}")
        is_introduced = target.principal is not None
        super().__init__(target, policy, tls, lambda: FluxWire(is_introduced=is_introduced))
        self._numbers = count(1)

    def greeting(self) -> m.Ping:
        return m.Ping(self._id())

    def _id(self) -> str:
        return str(next(self._numbers))

    def checked(self, answer: Any) -> Any:  # noqa: ANN401 - any answer
        if isinstance(answer, m.Failed):
            raise self._refused(answer)
        return answer

    def _refused(self, answer: m.Failed) -> RefusedError:
        if answer.code == E.NOT_LEADER:
            self._resume_at(read_address(answer.message.rpartition("leader=")[2]))
        return RefusedError(REASONS.get(answer.code, Refusal.FAILED), self.name, answer.code, answer.message)

    def _resume_at(self, leader: Address | None) -> None:
        """Follow the leader that a refusal names; if it names none, continue with the URL's next node."""
        if leader is None:
            self.unreachable(self.home)
        else:
            self._nodes = [leader, *(node for node in self._target.nodes if node != leader)]

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int) -> None:
        try:
            await self.ask_checked(m.CreateTopic(self._id(), topic, partitions, 1))
        except RefusedError as error:
            # One code covers all invalid requests: list the topics to find out whether this one exists.
            if error.reason is Refusal.INVALID and topic in await self.list_topics():
                raise RefusedError(Refusal.TOPIC_EXISTS, self.name, error.code, error.words) from error
            raise

    async def list_topics(self) -> list[str]:
        return sorted((await self.ask_checked(m.GetMetadata(self._id()))).topics)

    async def partitions(self, topic: str) -> int:
        await self._require_topic(topic)
        count = 0
        while True:
            probes = [self._probe(topic, count + at) for at in range(_PROBED_AT_ONCE)]
            answers = await self.ask_all(probes)
            for answer in answers:
                if isinstance(answer, ClientError):
                    raise answer
                if isinstance(answer, m.Failed):
                    if answer.code != E.BAD_REQUEST or not count:
                        raise self._refused(answer)
                    return count
                count += 1

    async def _require_topic(self, topic: str) -> None:
        """Check that the topic exists, because CONSUME would create it."""
        if topic not in await self.list_topics():
            raise RefusedError(Refusal.TOPIC_NOT_FOUND, self.name, "", f"no topic {topic!r}")

    def _probe(self, topic: str, partition: int, offset: int = I64_MAX) -> m.Consume:
        return m.Consume(self._id(), topic, partition, offset, _B64, records_max=1)

    async def span(self, topic: str, partition: int) -> Span:
        await self._require_topic(topic)
        return await self._span(topic, partition)

    async def _span(self, topic: str, partition: int) -> Span:
        latest = (await self.ask_checked(self._probe(topic, partition))).high_watermark + 1
        if await self._can_read(topic, partition, 0):
            return Span(0, latest)
        gone, there = 0, latest
        while there - gone > 1:
            middle = (gone + there) // 2
            if await self._can_read(topic, partition, middle):
                there = middle
            else:
                gone = middle
        return Span(there, latest)

    async def _can_read(self, topic: str, partition: int, offset: int) -> bool:
        try:
            await self.ask_checked(self._probe(topic, partition, offset))
        except RefusedError as error:
            if error.reason is not Refusal.INVALID:
                raise
            return False
        return True

    # -- records ---------------------------------------------------------------------------------------------

    def limits(self, topic: str) -> BatchLimits:  # noqa: ARG002 - every topic has the same
        return BatchLimits(LINE_BYTES_MAX, 512, LINE_BYTES_MAX)

    def weigh(self, record: NewRecord) -> int:
        text = sum((len(part) + 2) // 3 * 4 for part in (record.key, record.value) if part is not None)
        return text + _LINE_OVERHEAD_BYTES

    def check(self, topic: str, record: NewRecord) -> int:
        if record.key is not None and len(record.key) > KEY_BYTES_MAX:
            raise RecordError(f"the key has {len(record.key)} bytes; flux accepts {KEY_BYTES_MAX}")
        return super().check(topic, record)

    async def produce(self, batch: Batch) -> Sequence[Placed | ClientError]:
        messages = [
            m.Produce(self._id(), batch.topic, record.key, record.value, _ACKS[batch.acks], _B64)
            for record in batch.records
        ]
        answers = await self.ask_all(messages, channel=PRODUCE)
        return [self._placed(batch.topic, answer) for answer in answers]

    def _placed(self, topic: str, answer: Any) -> Placed | ClientError:  # noqa: ANN401 - an answer, or why there is none
        if isinstance(answer, ClientError):
            return answer
        if isinstance(answer, m.Failed):
            return self._refused(answer)
        return Placed(topic, answer.partition, answer.offset)

    async def fetch(self, request: FetchRequest) -> Fetched:
        """Fetch without regard to `slot`: a slow answer does not block others. CONSUME names no member."""
        topic, partition, offset = *request.place, request.offset
        wait_ms = min(request.wait_ms, WAIT_MS_MAX)
        records_max = max(request.bytes_max // _RECORD_BYTES_GUESS, 1)
        message = m.Consume(self._id(), topic, partition, offset, _B64, records_max, wait_ms)
        try:
            answer: m.Consumed = await self.ask_checked(message, None, fetch_channel(0), wait_ms)
        except RefusedError as error:
            # One code covers all invalid requests: read the log's first offset to find out whether this one was
            # deleted.
            if error.reason is Refusal.INVALID and offset < (await self._span(topic, partition)).earliest:
                raise RefusedError(Refusal.OFFSET_OUT_OF_RANGE, self.name, error.code, error.words) from error
            raise
        records = [ConsumedRecord(topic, partition, r.offset, r.key, r.value) for r in answer.records]
        next_offset = records[-1].offset + 1 if records else offset
        return Fetched(records, next_offset, answer.high_watermark + 1)

    # -- offsets and groups ----------------------------------------------------------------------------------

    async def commit(self, group: str, topic: str, offsets: dict[int, int], member: Membership | None) -> None:
        assert member is not None, "the consumer checks the capability `commits` before it commits"
        answers = await self.ask_all(
            [
                m.Commit(self._id(), group, topic, member.member, member.generation, partition, offset)
                for partition, offset in offsets.items()
            ]
        )
        for answer in answers:
            if isinstance(answer, ClientError):
                raise answer
            self.checked(answer)

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        answer = await self.ask_checked(m.ReadOffset(self._id(), group, topic, partition))
        return answer.offset if answer.offset > 0 else None

    async def join(self, group: str, topics: Sequence[str], who: MemberName) -> Membership:
        (topic,) = topics
        answer = await self.ask_checked(m.Join(self._id(), group, topic, who.name))
        places = tuple((topic, number) for number in answer.assigned)
        return Membership(group, (topic,), who.name, answer.generation, places)

    async def heartbeat(self, membership: Membership) -> None:
        await self.ask_checked(
            m.Heartbeat(self._id(), membership.group, membership.topics[0], membership.member, membership.generation)
        )

    async def leave(self, membership: Membership) -> None:
        await self.ask_checked(
            m.Leave(self._id(), membership.group, membership.topics[0], membership.member, membership.generation)
        )
