"""The rustlog driver, in both forms.

Does not handle: sockets, retries.

JSON is the default: it carries keys, and shows headers, timestamps and offsets. `?format=binary` is faster and
carries values only. If offsets have gaps, a binary answer does not contain each value's offset: then the driver
repeats the fetch in JSON.
"""

import ssl
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from braidlog.client.drivers.contract import (
    Acks,
    Batch,
    BatchLimits,
    Capabilities,
    ConsumedRecord,
    Fetched,
    FetchRequest,
    Headers,
    Membership,
    Placed,
    Span,
)
from braidlog.client.drivers.link import ConnectionWire, Endpoint, Links
from braidlog.client.drivers.routed import CONTROL, PRODUCE, RoutedDriver, fetch_channel
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import ClientError, Refusal, RefusedError
from braidlog.client.schemes import Target
from braidlog.model.record import NewRecord
from braidlog.wire.contract import base64_bytes
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.connection import ClientConnection, Response
from braidlog.wire.rustlog.messages import BinaryErrorCode as B
from braidlog.wire.rustlog.messages import ErrorCode as E
from braidlog.wire.rustlog.messages import Form

REASONS: dict[Form, dict[int, Refusal]] = {
    Form.JSON: {
        E.INVALID_REQUEST: Refusal.INVALID,
        E.TOPIC_NOT_FOUND: Refusal.TOPIC_NOT_FOUND,
        E.PARTITION_NOT_FOUND: Refusal.TOPIC_NOT_FOUND,
        E.RECORD_TOO_LARGE: Refusal.TOO_LARGE,
        E.OFFSET_OUT_OF_RANGE: Refusal.OFFSET_OUT_OF_RANGE,
        E.INTERNAL_SERVER_ERROR: Refusal.FAILED,
        E.STORAGE_ERROR: Refusal.FAILED,
        E.INSUFFICIENT_SPACE: Refusal.BUSY,  # nothing was stored (docs/dialects/rustlog.md), and space may become free
    },
    Form.BINARY: {
        B.FRAME: Refusal.INVALID,
        B.DECODE: Refusal.INVALID,
        B.FETCH_FAILED: Refusal.FAILED,
        B.COMMIT_FAILED: Refusal.FAILED,
        B.DOES_NOT_EXIST: Refusal.TOPIC_NOT_FOUND,
        B.ALREADY_EXISTS: Refusal.TOPIC_EXISTS,
        B.BAD_PARTITION_COUNT: Refusal.INVALID,
        B.DESCRIBE_TOPIC_FAILED: Refusal.TOPIC_NOT_FOUND,
        B.DESCRIBE_PARTITION_FAILED: Refusal.TOPIC_NOT_FOUND,
        B.INTERNAL: Refusal.FAILED,
    },
}
_FRAME_OVERHEAD_BYTES = 2048
_ROOM_BYTES = m.FRAME_BYTES_MAX - _FRAME_OVERHEAD_BYTES
_LIMITS = {
    Form.JSON: BatchLimits(_ROOM_BYTES, m.RECORDS_PER_PRODUCE_MAX, _ROOM_BYTES),
    Form.BINARY: BatchLimits(_ROOM_BYTES, 100_000, _ROOM_BYTES),
}
_JSON_RECORD_BYTES = len('"","",')


class RustlogDriver(RoutedDriver):
    name: ClassVar[str] = "rustlog"
    capabilities = Capabilities(
        keys=True, headers=Headers.SHOWN, timestamps=True, acks=(Acks.LEADER,), tells_uncommitted=True
    )

    def __init__(
        self, target: Target, options: dict[str, str], policy: Policy, tls: ssl.SSLContext | None = None
    ) -> None:
        form = options.pop("format", Form.JSON.value)
        if options or form not in {each.value for each in Form}:
            raise ValueError(f"rustlog:// takes the option format=json or format=binary, not {options or form}")
        self._form = Form(form)
        super().__init__(target, policy, tls, lambda: _wire(self._form))
        if self._form is Form.BINARY:
            self.capabilities = msgspec.structs.replace(
                self.capabilities, keys=False, headers=Headers.NONE, timestamps=False, waits=False
            )
        greet = None if target.principal is None else self.introduce
        self._json_links = Links(Endpoint(lambda: _wire(Form.JSON), policy.connect_timeout, tls, greet))

    def greeting(self) -> m.Ping:
        return m.Ping()

    async def _json_ask(self, message: Any) -> Any:  # noqa: ANN401 - any answer
        """Send a request in JSON for what the binary form cannot express."""
        if self._form is Form.JSON:
            return await self.ask_checked(message)
        link = await self._json_links.get(self.home, CONTROL)
        return self.checked(await link.ask(message, self._policy.request_timeout))

    def checked(self, answer: Response) -> Any:  # noqa: ANN401 - any answer
        said = answer.message
        if not isinstance(said, m.Error):
            return said
        reason = REASONS[answer.form].get(said.code, Refusal.FAILED)
        if answer.request is m.CreateTopic and said.details == {"success": False}:
            reason = Refusal.TOPIC_EXISTS  # the protocol document has no code for this
        if said.details == m.RETRIABLE:
            reason = Refusal.BUSY  # there is no code for a retriable failure
        if said.details == m.OUTCOME_UNKNOWN:
            reason = Refusal.TIMED_OUT
        raise RefusedError(reason, self.name, _code(answer.form, said.code), said.message)

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int) -> None:
        await self.ask_checked(m.CreateTopic(topic=topic, partition_count=partitions))

    async def list_topics(self) -> list[str]:
        return sorted(topic.name for topic in (await self.ask_checked(m.ListTopics())).topics)

    async def partitions(self, topic: str) -> int:
        return len((await self.ask_checked(m.DescribeTopic(topic=topic))).partitions)

    async def span(self, topic: str, partition: int) -> Span:
        answer = await self._json_ask(m.DescribePartition(topic=topic, partition=partition))
        return Span(answer.log_start_offset, answer.high_watermark)

    # -- records ---------------------------------------------------------------------------------------------

    def limits(self, topic: str) -> BatchLimits:  # noqa: ARG002 - every topic has the same
        return _LIMITS[self._form]

    def weigh(self, record: NewRecord) -> int:
        value = len(record.value or b"")
        if self._form is Form.BINARY:
            return 4 + value
        return base64_bytes(value) + base64_bytes(len(record.key or b"")) + _JSON_RECORD_BYTES

    async def produce(self, batch: Batch) -> Sequence[Placed | ClientError]:
        keys = [record.key for record in batch.records]
        message = m.Produce(
            topic=batch.topic,
            partition=batch.partition,
            records=[record.value or b"" for record in batch.records],
            keys=keys if any(key is not None for key in keys) else None,
        )
        answer: m.ProduceResponse = await self.ask_checked(message, None, PRODUCE)
        return [Placed(batch.topic, batch.partition, answer.base_offset + at) for at in range(len(keys))]

    async def fetch(self, request: FetchRequest) -> Fetched:
        if self._form is Form.BINARY:
            return await self._fetch_values(request)
        message = _fetch_message(request, max_wait_ms=request.wait_ms)
        channel = fetch_channel(request.slot)
        return _fetched(*request.place, await self.ask_checked(message, None, channel, request.wait_ms))

    async def _fetch_values(self, request: FetchRequest) -> Fetched:
        topic, partition, offset = *request.place, request.offset
        message = _fetch_message(request)
        answer: m.BriefFetchResponse = await self.ask_checked(message, None, fetch_channel(request.slot))
        if answer.records and answer.next_offset != offset + len(answer.records):
            return _fetched(topic, partition, await self._json_ask(message))
        records = [
            ConsumedRecord(topic, partition, offset + at, None, value) for at, value in enumerate(answer.records)
        ]
        return Fetched(records, answer.next_offset)

    # -- offsets ---------------------------------------------------------------------------------------------

    async def commit(self, group: str, topic: str, offsets: dict[int, int], member: Membership | None) -> None:
        assert member is None
        for partition, offset in offsets.items():
            message = m.OffsetCommit(group=group, topic=topic, partition=partition, offset=offset)
            if not (await self.ask_checked(message)).success:
                raise RefusedError(
                    Refusal.TOPIC_NOT_FOUND, self.name, "", f"topic {topic!r} has no partition {partition}"
                )

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        answer = await self.ask_checked(m.OffsetFetch(group=group, topic=topic, partition=partition))
        offset: int | None = answer.offset
        return offset

    def close(self) -> None:
        self._json_links.close()
        super().close()


def _fetch_message(request: FetchRequest, max_wait_ms: int | None = None) -> m.Fetch:
    # With a group name the binary form would start at the group's committed offset and ignore `offset`.
    return m.Fetch(
        group_id="",
        topic=request.topic,
        partition=request.partition,
        offset=request.offset,
        max_bytes=request.bytes_max,
        max_wait_ms=max_wait_ms,
    )


def _code(form: Form, code: int) -> int:
    """Return the name of a code, if it has one."""
    known = E if form is Form.JSON else B
    return known(code) if code in set(known) else code


def _wire(form: Form) -> ConnectionWire:
    return ConnectionWire(ClientConnection(form))


def _fetched(topic: str, partition: int, answer: m.FetchResponse) -> Fetched:
    records = [
        ConsumedRecord(
            topic, partition, record.offset, record.key, record.payload, record.headers, record.timestamp // 1000
        )
        for record in answer.records
    ]
    return Fetched(records, answer.next_offset)
