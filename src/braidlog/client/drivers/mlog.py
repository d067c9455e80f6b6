"""The mlog driver: values of one partition, JSON in frames.

Maps mlog's error codes, and follows its rule for finding the leader again (`should_reconnect`). Does not handle:
sockets, retries.

To an mlog server offset 0 means "continue where this consumer was". So every driver fetches under its own name and
never commits: then 0 is offset 0.
"""

import ssl
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from braidlog.client.drivers.contract import (
    Acks,
    Batch,
    BatchLimits,
    Capabilities,
    ConsumedRecord,
    Fetched,
    FetchRequest,
    Membership,
    Placed,
    Span,
)
from braidlog.client.drivers.link import ConnectionWire
from braidlog.client.drivers.routed import CONTROL, PRODUCE, RoutedDriver, fetch_channel
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import Address, ClientError, ConnectError, NoAnswerError, Refusal, RefusedError
from braidlog.client.schemes import Target
from braidlog.model.address import read_address
from braidlog.model.record import NewRecord
from braidlog.wire.contract import base64_bytes
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.connection import ClientConnection
from braidlog.wire.mlog.errors import ErrorCode as E
from braidlog.wire.mlog.errors import RPCErrorResponse, should_reconnect
from braidlog.wire.mlog.sizes import value_bytes_max

REASONS: dict[int, Refusal] = {
    E.UNKNOWN: Refusal.FAILED,
    E.TOPIC_REQUIRED: Refusal.INVALID,
    E.TOPIC_NAME_REQUIRED: Refusal.INVALID,
    E.TOPIC_NOT_FOUND: Refusal.TOPIC_NOT_FOUND,
    E.NOT_TOPIC_LEADER: Refusal.NOT_LEADER,
    E.VALUES_REQUIRED: Refusal.INVALID,
    E.READ_OFFSET: Refusal.OFFSET_OUT_OF_RANGE,
    E.COMMIT_OFFSET: Refusal.FAILED,
    E.RECOVER_OFFSETS: Refusal.FAILED,
    E.REPLICA_COUNT_INVALID: Refusal.INVALID,
    E.LEADER_ADDR_REQUIRED: Refusal.NOT_LEADER,
    E.RAFT_LEADER_UNAVAILABLE: Refusal.NOT_LEADER,
    E.TOPIC_EXISTS: Refusal.TOPIC_EXISTS,
    E.NOT_ENOUGH_NODES: Refusal.INVALID,
    E.CANNOT_REACH_LEADER: Refusal.FAILED,  # not in the document's ShouldReconnect: a client does not look up the leader for it
    E.INVALID_ACK_MODE: Refusal.INVALID,
    E.TIMEOUT_CATCH_UP: Refusal.TIMED_OUT,
}
_ACKS = {Acks.LEADER: m.AckMode.LEADER, Acks.ALL: m.AckMode.ALL}
_RECORDS_MAX = 50_000
_RECORD_BYTES_GUESS = 256
_METADATA = ""
"""The key of the metadata leader in the leader cache; no topic has this name."""


class MlogDriver(RoutedDriver):
    name: ClassVar[str] = "mlog"
    capabilities = Capabilities(empty_values=False, partitions=False, waits=False, deletes=True)

    def __init__(
        self, target: Target, options: dict[str, str], policy: Policy, tls: ssl.SSLContext | None = None
    ) -> None:
        if options:
            raise ValueError(f"mlog:// takes no options: {', '.join(options)}")
        super().__init__(target, policy, tls, lambda: ConnectionWire(ClientConnection()))
        self._reader = f"braidlog-{uuid.uuid4().hex}"
        self._look_again: set[str] = set()

    def greeting(self) -> m.ListTopicsRequest:
        return m.ListTopicsRequest()

    # -- the leader ------------------------------------------------------------------------------------------

    async def _ask_leader(self, topic: str, message: Any, channel: str) -> Any:  # noqa: ANN401 - any answer
        """Ask a topic's leader, or the metadata leader for no topic. Look the leader up again if `should_reconnect`
        says so."""
        if topic in self._look_again:
            await self._find_leader(topic)
        leader = self.leader(topic, 0)
        try:
            answer = await self.ask(message, leader, channel)
        except (ConnectError, NoAnswerError):
            self._look_again.add(topic)  # an error of the network: in the document's ShouldReconnect
            raise
        if isinstance(answer, RPCErrorResponse) and should_reconnect(answer):
            self._look_again.add(topic)
            self._links.drop(leader, "another node leads")
            raise RefusedError(Refusal.NOT_LEADER, self.name, _code(answer), answer.message)
        return self.checked(answer)

    async def _find_leader(self, topic: str) -> None:
        """Look up the leader. Raises if the topic does not exist, as known by the node that creates topics: other
        nodes may learn of a new topic later."""
        self._leaders.pop((topic, 0), None)
        if topic == _METADATA:
            text = (await self.ask_checked(m.FindRaftLeaderRequest())).raft_leader_addr
        else:
            answer = await self.ask(m.FindTopicLeaderRequest(topic), self.leader(_METADATA, 0))
            text = self.checked(answer).leader_addr
        leader: Address | None = read_address(text)
        if leader is not None:
            self._leaders[topic, 0] = leader
        self._look_again.discard(topic)

    def checked(self, answer: Any) -> Any:  # noqa: ANN401 - any answer
        if isinstance(answer, RPCErrorResponse):
            raise RefusedError(REASONS.get(answer.code, Refusal.FAILED), self.name, _code(answer), answer.message)
        return answer

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int) -> None:
        if partitions != 1:
            self.require("partitions")
        await self._ask_leader(_METADATA, m.CreateTopicRequest(topic), CONTROL)

    async def delete_topic(self, topic: str) -> None:
        await self._find_leader(topic)  # raises if the topic does not exist
        await self._ask_leader(_METADATA, m.DeleteTopicRequest(topic), CONTROL)

    async def list_topics(self) -> list[str]:
        answer = await self.ask_checked(m.ListTopicsRequest())
        return sorted(info.name for info in answer.topics or ())

    async def partitions(self, topic: str) -> int:
        await self._describe(topic)
        return 1

    async def _describe(self, topic: str) -> m.TopicInfo:
        # Ask the node that creates topics: other nodes may learn of a new topic later.
        answer: m.ListTopicsResponse = await self._ask_leader(_METADATA, m.ListTopicsRequest(), CONTROL)
        for info in answer.topics or ():
            if info.name == topic:
                return info
        raise RefusedError(Refusal.TOPIC_NOT_FOUND, self.name, "", f"no topic {topic!r}")

    async def span(self, topic: str, partition: int) -> Span:
        self._check_partition(partition)
        info = await self._describe(topic)
        ends = {replica.node_id: replica.leo for replica in info.replicas or ()}
        latest = ends.get(info.leader_node_id, max(ends.values(), default=0))
        first = await self._fetch(topic, 0, 1, CONTROL)
        # No readable record does not mean that the log starts at its end: records may be uncommitted. 0 is always
        # right, because a server continues reading where its log starts.
        return Span(first[0].offset if first else 0, latest)

    def _check_partition(self, partition: int) -> None:
        if partition != 0:
            self.require("partitions")

    # -- records ---------------------------------------------------------------------------------------------

    def limits(self, topic: str) -> BatchLimits:
        largest = base64_bytes(value_bytes_max(topic)) + 3
        return BatchLimits(largest, _RECORDS_MAX, largest)

    def weigh(self, record: NewRecord) -> int:
        return base64_bytes(len(record.value or b"")) + len('"",')

    async def produce(self, batch: Batch) -> Sequence[Placed | ClientError]:
        self._check_partition(batch.partition)
        values = tuple(record.value for record in batch.records)
        message = m.ProduceBatchRequest(batch.topic, values, _ACKS[batch.acks])
        answer = await self._ask_leader(batch.topic, message, PRODUCE)
        return [Placed(batch.topic, 0, answer.base_offset + at) for at in range(len(values))]

    async def fetch(self, request: FetchRequest) -> Fetched:
        topic, offset, records_max = request.topic, request.offset, max(request.bytes_max // _RECORD_BYTES_GUESS, 1)
        self._check_partition(request.partition)
        entries = await self._fetch(topic, offset, records_max, fetch_channel(request.slot))
        # Skip records before the requested offset: the server may have resumed at another offset.
        records = [ConsumedRecord(topic, 0, e.offset, None, e.value) for e in entries if e.offset >= offset]
        return Fetched(records, records[-1].offset + 1 if records else offset)

    async def _fetch(self, topic: str, offset: int, count: int, channel: str) -> list[m.LogEntry]:
        message = m.FetchBatchRequest(topic, self._reader, offset, min(count, _RECORDS_MAX))
        answer: m.FetchBatchResponse = await self._ask_leader(topic, message, channel)
        return [entry for entry in answer.entries or () if entry is not None]

    # -- offsets ---------------------------------------------------------------------------------------------

    async def commit(self, group: str, topic: str, offsets: dict[int, int], member: Membership | None) -> None:
        assert member is None
        for partition, offset in offsets.items():
            self._check_partition(partition)
            await self._ask_leader(topic, m.CommitOffsetRequest(topic, group, offset), CONTROL)

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        self._check_partition(partition)
        answer = await self._ask_leader(topic, m.FetchOffsetRequest(topic, group), CONTROL)
        return answer.offset or None


def _code(answer: RPCErrorResponse) -> int:
    return E(answer.code) if answer.code in set(E) else answer.code
