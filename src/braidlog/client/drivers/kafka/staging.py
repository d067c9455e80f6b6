"""Writes sealed batches under their own producer: for a stage (an open transaction), or idempotently without one.

Does not handle: records, deciding whether a stage is complete. Batches of a partition are stored once and in order: a
retry carries the same bytes under the same sequence numbers, and at most as many batches are in flight as the log
remembers per producer. At most `window_bytes` are held. After a failure nothing is retried under another producer:
the caller begins a new stage.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from braidlog.client.drivers.kafka.routing import TRANSACTION, Router, only
from braidlog.client.drivers.link import Link
from braidlog.client.drivers.routed import PRODUCE
from braidlog.client.engine.byte_budget import ByteBudget
from braidlog.client.engine.retry import Backoff, Policy, retry
from braidlog.client.errors import ClientError, ClosedError, UnsupportedError
from braidlog.codec.batch.records import seal_section
from braidlog.codec.compression import Compression
from braidlog.model.stage_ids import PREFIX
from braidlog.tasks import Tasks
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import staging as s
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.messages.parts import TransactionalProducer
from braidlog.wire.kafka.rows import Message

Place = tuple[str, int]

IN_FLIGHT_MAX = 5
"""Batches of one producer in flight to one partition: as many as brokers remember."""
WINDOW_BYTES = 32 * 1024 * 1024
NO_BATCH = -1
_SEQUENCES = 2**31
_TIMEOUT_MS_MAX = 2**31 - 1
_ALL = -1


class Stage(NamedTuple):
    """An open transaction: what a committer of the batch must know."""

    name: str
    producer_id: int
    epoch: int


class Section(NamedTuple):
    """Packed records and their metadata for a batch header."""

    data: bytes | bytearray
    records: int
    base_time: int
    latest_time: int


class Sealed(NamedTuple):
    place: Place
    batch: bytes


class Decision(NamedTuple):
    """`already`: the batch was committed before, and nothing from this attempt counts."""

    last_batch: int
    already: bool


class BatchWriter:
    """Writes batches; used by the one task that created it. With a `stage` name all batches belong to one open
    transaction."""

    def __init__(
        self,
        router: Router,
        policy: Policy,
        *,
        stage: str | None = None,
        coordinator: str = "",
        timeout_ms: int = _TIMEOUT_MS_MAX,
        compression: Compression = Compression.NONE,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._router = router
        self._policy = policy
        self._stage = stage
        self._coordinator = coordinator
        self._timeout_ms = timeout_ms
        self._compression = compression
        self._producer = (-1, -1)
        self._sequences: dict[Place, int] = {}
        self._added: set[Place] = set()
        self._queues: dict[Place, deque[Sealed]] = {}
        self._budget = ByteBudget(window_bytes)
        self._tasks = Tasks()
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: ClientError | None = None

    @property
    def stage(self) -> Stage | None:
        """Return the open transaction; None without a stage, or before `begin`."""
        return None if self._stage is None or self._producer[0] < 0 else Stage(self._stage, *self._producer)

    # -- beginning ---------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Obtain a producer id and epoch."""
        message = t.InitProducerIdRequest(self._stage, self._timeout_ms)

        async def ask() -> tuple[int, int]:
            answer: t.InitProducerIdResponse = await (
                self._router.ask(message) if self._stage is None else self._ask_coordinator(message)
            )
            if answer.error_code:
                raise self._refuse(answer.error_code, self._stage)
            return answer.producer_id, answer.producer_epoch

        self._producer = await retry(self._policy, ask)

    async def add(self, places: Sequence[Place]) -> None:
        """Announce the partitions to write to. In a stage this must precede their first batch."""
        missing = [place for place in dict.fromkeys(places) if place not in self._added]
        if missing and self._stage is not None:
            await retry(self._policy, lambda: self._add(missing))
        self._added.update(missing)

    async def _add(self, places: Sequence[Place]) -> None:
        assert self._stage is not None
        topics: dict[str, list[int]] = {}
        for topic, number in places:
            topics.setdefault(topic, []).append(number)
        message = t.AddPartitionsToTxnRequest(
            self._stage, *self._producer, [t.AddPartitionsToTxnRequestTopic(*each) for each in topics.items()]
        )
        answer: t.AddPartitionsToTxnResponse = await self._ask_coordinator(message)
        codes = {
            part.partition_error_code: f"{topic.name}/{part.partition_index}"
            for topic in answer.results_by_topic
            for part in topic.results_by_partition
        }
        # A place with "not attempted" gives no reason; another place does.
        wrong = [code for code in codes if code] and sorted(
            codes, key=lambda code: code in (0, E.OPERATION_NOT_ATTEMPTED)
        )
        if wrong:
            raise self._refuse(wrong[0], codes[wrong[0]])

    async def _ask_coordinator(self, message: Message) -> Any:  # noqa: ANN401 - any answer
        return await self._router.ask(message, await self._router.coordinator_of(self._coordinator, TRANSACTION))

    def _refuse(self, code: int, about: str | None) -> ClientError:
        return self._router.refuse(code, about=about or "", transaction=self._coordinator)

    # -- writing -----------------------------------------------------------------------------------------------

    def seal(self, place: Place, section: Section) -> Sealed:
        """Build the batch of a section, under its partition's next sequence numbers. May run in any thread, one call
        at a time; the batch must then be sent."""
        assert self._producer[0] >= 0, "call begin() before seal()"
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = (sequence + section.records) % _SEQUENCES
        batch = seal_section(
            section.data,
            section.records,
            base_timestamp=section.base_time,
            max_timestamp=section.latest_time,
            compression=self._compression,
            leader_epoch=-1,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=sequence,
            transactional=self._stage is not None,
        )
        return Sealed(place, batch)

    async def send(self, sealed: Sealed) -> None:
        """Queue a batch; waits while the window is full. Raises the first failure of earlier batches."""
        assert sealed.place in self._added, "call add() before a partition is written to"
        await self._budget.take(len(sealed.batch))
        self._check()
        queue = self._queues.get(sealed.place)
        if queue is None:
            self._queues[sealed.place] = deque((sealed,))
            self._idle.clear()
            self._tasks.spawn(self._run(sealed.place), f"stage {sealed.place}", self._crashed)
        else:
            queue.append(sealed)

    async def flush(self) -> None:
        """Wait until every batch is stored; raise the first failure."""
        await self._idle.wait()
        self._check()

    async def close(self) -> None:
        """Stop sending."""
        self._fail(ClosedError("the writer is closed"))
        await self._tasks.stop()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: ClientError) -> None:
        self._failure = self._failure or error
        for queue in self._queues.values():
            self._budget.give(sum(len(each.batch) for each in queue))
            queue.clear()
        self._queues.clear()
        self._idle.set()

    def _crashed(self, error: BaseException) -> None:
        """Fail all batches after a defect, so that no caller waits forever."""
        self._fail(ClosedError(f"the writer crashed: {error!r}"))

    async def _run(self, place: Place) -> None:
        """Send the queue of one partition; retry unstored batches in order."""
        queue = self._queues[place]
        backoff = Backoff(self._policy)
        while queue:
            first = queue[0]
            try:
                async with self._router.reaching(await self._router.leader_of(*place), PRODUCE) as link:
                    await self._stream(link, place, queue)
            except ClientError as error:
                if queue and queue[0] is not first:
                    backoff = Backoff(self._policy)
                if queue and (not error.retriable or not await backoff.pause()):
                    self._fail(error)
        self._queues.pop(place, None)
        if not self._queues:
            self._idle.set()

    async def _stream(self, link: Link, place: Place, queue: deque[Sealed]) -> None:
        """Send a queue in order, with as many batches in flight as allowed, until it is empty; raise why its first
        batch failed.

        Batches in flight are the head of the queue. After a failed batch no more are sent, and the outstanding
        answers are awaited: a retry follows all of them.
        """
        timeout = self._policy.request_timeout
        under_way: deque[asyncio.Future[Any]] = deque()
        failure: ClientError | None = None
        try:
            while True:
                if failure is None and (more := list(islice(queue, len(under_way), IN_FLIGHT_MAX))):
                    try:
                        under_way += await link.post([self._request(place, each) for each in more], timeout)
                    except ClientError as error:
                        failure = error
                if not under_way:
                    break
                answer = await link.answer_to(under_way.popleft(), timeout)
                failure = failure or self._refusal_in(place, answer)
                if failure is None and queue:  # (the queue is emptied when the writer fails)
                    self._budget.give(len(queue.popleft().batch))
        finally:
            for future in under_way:
                future.cancel()
        if failure is not None:
            raise failure

    def _request(self, place: Place, sealed: Sealed) -> d.ProduceRequest:
        timeout_ms = min(int(self._policy.request_timeout * 1000), _TIMEOUT_MS_MAX)
        partition = d.ProduceRequestPartition(place[1], sealed.batch)
        return d.ProduceRequest(
            self._stage, _ALL, timeout_ms, [d.ProduceRequestTopic(place[0], partition_data=[partition])]
        )

    def _refusal_in(self, place: Place, answer: Any) -> ClientError | None:  # noqa: ANN401 - an answer, or what became of it
        if isinstance(answer, ClientError):
            return answer
        part = only([part for response in answer.responses for part in response.partition_responses], "Produce")
        if part.error_code in (E.NONE, E.DUPLICATE_SEQUENCE_NUMBER):
            return None
        return self._router.refuse(part.error_code, part.error_message, place=place)


# -- decisions -------------------------------------------------------------------------------------------------------


class Sinks:
    """Commits and aborts batches of sinks on the broker. Every request may be retried."""

    def __init__(self, router: Router, policy: Policy) -> None:
        self._router = router
        self._policy = policy

    async def state(self, sink: str, writer: str = "") -> int:
        """Return the last committed batch, or NO_BATCH."""
        answer: s.SinkStateResponse = await self._ask(sink, s.SinkStateRequest(sink, writer))
        return answer.last_batch

    async def commit(self, sink: str, batch_id: int, stages: Sequence[Stage], writer: str = "") -> Decision:
        """Commit a batch: all of its stages, or none."""
        answer: s.CommitBatchResponse = await self._ask(
            sink, s.CommitBatchRequest(sink, batch_id, writer, [TransactionalProducer(*stage) for stage in stages])
        )
        return Decision(answer.last_batch, answer.already)

    async def abort(self, sink: str, batch_id: int, stages: Sequence[Stage] | None) -> Decision:
        """Abort stages; None: all open stages of this batch and of earlier ones. Committed batches stay."""
        named = None if stages is None else [TransactionalProducer(*stage) for stage in stages]
        answer: s.AbortBatchResponse = await self._ask(sink, s.AbortBatchRequest(sink, batch_id, named))
        return Decision(answer.last_batch, answer.already)

    async def _ask(self, sink: str, message: Message) -> Any:  # noqa: ANN401 - any answer
        name = coordinator_name(sink)

        async def ask() -> Any:  # noqa: ANN401 - any answer
            at = await self._router.coordinator_of(name, TRANSACTION)
            answer = await self._router.ask(message, at)
            self._router.check_code(answer.error_code, answer.error_message, transaction=name)
            return answer

        try:
            return await retry(self._policy, ask)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"the server cannot commit batches of several writers ({error}): "
                "use at-least-once with brokers other than braidlog"
            ) from error


def coordinator_name(sink: str) -> str:
    """Return the name whose coordinator decides all stages of a sink."""
    return f"{PREFIX}{sink}"
