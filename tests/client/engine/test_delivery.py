"""What an acknowledgement means: the table of outcomes, and partition senders over a server that answers as it is told."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.client.dialects import run, until

from braidlog.client.drivers.contract import (
    Acks,
    Batch,
    BatchLimits,
    Capabilities,
    Driver,
    Fetched,
    FetchRequest,
    Placed,
    Span,
)
from braidlog.client.engine.delivery import Retries, judge, leaves_doubt
from braidlog.client.engine.options import ProducerOptions
from braidlog.client.engine.producer import Producer
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import (
    BufferFullError,
    ClientError,
    ClosedError,
    ConnectError,
    NoAnswerError,
    Refusal,
    RefusedError,
    Stored,
    UnknownOutcomeError,
)
from braidlog.model.record import NewRecord

Answer = Sequence[Placed | ClientError] | ClientError


def refused(reason: Refusal) -> RefusedError:
    return RefusedError(reason, "scripted", 7, "as told")


class Scripted(Driver):
    """A server that does what the test says, attempt by attempt; then it stores."""

    name = "scripted"

    def __init__(self, *script: ClientError | Callable[[Batch], Answer], **able: Any) -> None:
        self.capabilities = Capabilities(keys=True, **able)
        self.script = list(script)
        self.attempts: list[Batch] = []
        self.log: list[bytes | None] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def produce(self, batch: Batch) -> Sequence[Placed | ClientError]:
        self.attempts.append(batch)
        await self.gate.wait()
        step = self.script.pop(0) if self.script else self.store
        answer: Answer = step if isinstance(step, ClientError) else step(batch)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    def store(self, batch: Batch) -> Sequence[Placed | ClientError]:
        base = len(self.log)
        self.log += [record.value for record in batch.records]
        return [Placed(batch.topic, max(batch.partition, 0), base + at) for at in range(len(batch.records))]

    def store_and_lose_the_answer(self, batch: Batch) -> Answer:
        self.store(batch)
        return NoAnswerError("cut")

    def limits(self, topic: str) -> BatchLimits:
        return BatchLimits(10_000, 1000, 10_000)

    def weigh(self, record: NewRecord) -> int:
        return len(record.value or b"")

    async def partitions(self, topic: str) -> int:
        return 1

    async def create_topic(self, topic: str, partitions: int) -> None: ...
    async def list_topics(self) -> list[str]:
        return []

    async def span(self, topic: str, partition: int) -> Span:
        return Span(0, 0)

    async def fetch(self, wanted: FetchRequest) -> Fetched:
        return Fetched([], wanted.offset)

    async def commit(self, *_: Any) -> None: ...
    async def committed(self, *_: Any) -> int | None:
        return None

    async def connect(self) -> None: ...
    def close(self) -> None: ...


def producer(driver: Scripted, **options: Any) -> Producer:
    return Producer(driver, Policy(backoff_min=0.001, backoff_max=0.002), ProducerOptions(**options))


@pytest.mark.parametrize(
    ("able", "options", "asked"),
    [
        ({"idempotence": True}, {}, Acks.ALL),
        ({"idempotence": True}, {"idempotent": True}, Acks.ALL),
        ({"idempotence": True}, {"idempotent": False}, Acks.LEADER),
        ({"idempotence": True}, {"acks": Acks.LEADER}, Acks.LEADER),
        ({"idempotence": True, "acks": (Acks.LEADER,)}, {}, Acks.LEADER),
        ({}, {}, Acks.LEADER),
        ({}, {"acks": Acks.ALL}, Acks.ALL),
    ],
)
async def test_an_idempotent_producer_asks_for_all_unless_told(
    able: dict[str, Any], options: dict[str, Any], asked: Acks
) -> None:
    """What a leader alone had may be gone after a fail-over: the next number would be refused for the gap before it."""
    driver = Scripted(**able)
    async with producer(driver, **options) as each:
        await each.send_and_wait("t", b"v")
    assert [batch.acks for batch in driver.attempts] == [asked]


NOT_SENT, LOST = ConnectError("refused"), NoAnswerError("cut")
AGAIN, TOLD, UNKNOWN = "again", "told", "unknown"


@pytest.mark.parametrize(
    ("error", "identified", "safe", "at_least_once"),
    [
        (NOT_SENT, AGAIN, AGAIN, AGAIN),
        (refused(Refusal.NOT_LEADER), AGAIN, AGAIN, AGAIN),
        (refused(Refusal.BUSY), AGAIN, AGAIN, AGAIN),
        (refused(Refusal.INVALID), TOLD, TOLD, TOLD),
        (refused(Refusal.TOO_LARGE), TOLD, TOLD, TOLD),
        (refused(Refusal.FENCED), TOLD, TOLD, TOLD),
        (refused(Refusal.TIMED_OUT), AGAIN, UNKNOWN, AGAIN),
        (refused(Refusal.FAILED), AGAIN, UNKNOWN, UNKNOWN),
        (LOST, AGAIN, UNKNOWN, AGAIN),
    ],
    ids=str,
)
def test_the_table_of_outcomes(error: ClientError, identified: str, safe: str, at_least_once: str) -> None:
    for expected, has_identity, retries in (
        (identified, True, Retries.SAFE),
        (safe, False, Retries.SAFE),
        (at_least_once, False, Retries.AT_LEAST_ONCE),
    ):
        doubtful = leaves_doubt(error, Acks.LEADER)
        told = judge(error, in_doubt=doubtful, doubtful=doubtful, identified=has_identity, retries=retries)
        found = AGAIN if told is None else UNKNOWN if isinstance(told, UnknownOutcomeError) else TOLD
        assert (found, retries) == (expected, retries)


@pytest.mark.parametrize("reason", Refusal)
def test_no_refusal_takes_a_doubt_away(reason: Refusal) -> None:
    told = judge(refused(reason), in_doubt=True, doubtful=False, identified=True, retries=Retries.SAFE)
    assert told is None or isinstance(told, UnknownOutcomeError)


def test_a_leader_that_loses_its_office_while_it_waits_for_replicas_leaves_doubt() -> None:
    assert leaves_doubt(refused(Refusal.NOT_LEADER), Acks.ALL)
    assert not leaves_doubt(refused(Refusal.NOT_LEADER), Acks.LEADER)
    assert {reason for reason in Refusal if reason.stored is Stored.MAYBE} == {Refusal.TIMED_OUT, Refusal.FAILED}


async def test_a_lost_answer_is_an_unknown_outcome_and_the_next_record_goes_on() -> None:
    driver = Scripted(LOST)
    sender = producer(driver)
    with pytest.raises(UnknownOutcomeError) as caught:
        await sender.send_and_wait("t", b"a")
    assert caught.value.__cause__ is LOST
    assert (await sender.send_and_wait("t", b"b")).offset == 0
    assert len(driver.attempts) == 2
    await sender.close()


async def test_at_least_once_sends_again() -> None:
    driver = Scripted()
    driver.script = [driver.store_and_lose_the_answer]
    sender = producer(driver, retries=Retries.AT_LEAST_ONCE)
    assert (await sender.send_and_wait("t", b"a")).offset == 1
    assert driver.log == [b"a", b"a"]
    await sender.close()


async def test_a_retry_under_an_identity_is_the_very_same_batch() -> None:
    driver = Scripted(LOST, refused(Refusal.FAILED), NOT_SENT, idempotence=True)
    sender = producer(driver)
    first = await sender.send("t", b"a")
    await until(lambda: driver.attempts, "the first attempt")
    await sender.send("t", b"b")  # comes while the first is tried: it must not slip into its batch
    await first
    await sender.flush()
    assert driver.attempts[:4] == [driver.attempts[0]] * 4
    assert [batch.identity.sequence for batch in driver.attempts[3:] if batch.identity] == [1, 2]
    await sender.close()


async def test_after_a_doubt_that_stays_the_sequence_is_never_used_again() -> None:
    """A server that has the lost batch would take the next one, under the same number, for a retry of it: and drop it."""
    driver = Scripted(LOST, refused(Refusal.INVALID), idempotence=True)
    sender = producer(driver)
    with pytest.raises(UnknownOutcomeError):
        await sender.send_and_wait("t", b"a")
    await sender.send_and_wait("t", b"b")
    first, _, last = [batch.identity for batch in driver.attempts]
    assert first is not None
    assert last is not None
    assert last.producer != first.producer
    assert last.sequence == 1
    await sender.close()


async def test_what_was_surely_not_stored_gives_its_sequence_back() -> None:
    driver = Scripted(refused(Refusal.TOO_LARGE), idempotence=True)
    sender = producer(driver)
    with pytest.raises(RefusedError):
        await sender.send_and_wait("t", b"a")
    await sender.send_and_wait("t", b"b")
    assert driver.attempts[0].identity == driver.attempts[1].identity
    await sender.close()


async def test_a_fenced_producer_goes_on_under_a_new_name() -> None:
    driver = Scripted(refused(Refusal.FENCED), idempotence=True)
    sender = producer(driver)
    with pytest.raises(RefusedError):
        await sender.send_and_wait("t", b"a")
    await sender.send_and_wait("t", b"b")
    assert driver.attempts[0].identity != driver.attempts[1].identity
    await sender.close()


def test_one_by_one_nothing_overtakes_its_own_key() -> None:
    def some(batch: Batch) -> Answer:
        """a1 and b1 are refused for now, a2 is stored."""
        return [refused(Refusal.BUSY), refused(Refusal.BUSY), Placed("t", 0, 0)]

    async def test() -> None:
        driver = Scripted(some, places=False, batches=False)
        sender = producer(driver)
        sent = [await sender.send("t", value, key=value[:1]) for value in (b"a1", b"b1", b"a2")]
        assert (await sent[2]).offset == 0
        with pytest.raises(RefusedError):
            await sent[0]  # sent again it would stand behind a2
        await sent[1]
        assert [[record.value for record in batch.records] for batch in driver.attempts] == [
            [b"a1", b"b1", b"a2"],
            [b"b1"],
        ]
        await sender.close()

    run(test)


async def test_given_up_in_time_and_what_waited_as_long_is_not_tried_at_all() -> None:
    driver = Scripted(NOT_SENT)
    driver.gate.clear()
    sender = producer(driver, delivery_timeout=0.05, batch_records_max=1)
    sent = [await sender.send("t", b"%d" % at) for at in range(5)]
    await until(lambda: asyncio.get_running_loop().time() > sent[-1].deadline, "their time is over")
    driver.gate.set()
    for delivery in sent:
        with pytest.raises(ConnectError):
            await delivery
    assert {record.value for batch in driver.attempts for record in batch.records} == {b"0"}
    await sender.close()


async def test_flush_raises_what_nobody_looked_at_once() -> None:
    driver = Scripted(refused(Refusal.INVALID), refused(Refusal.INVALID))
    sender = producer(driver, batch_records_max=1)
    seen, _ = [await sender.send("t", b"%d" % at) for at in range(2)]
    with pytest.raises(RefusedError):
        await seen
    with pytest.raises(RefusedError):
        await sender.flush()
    await sender.flush()
    await sender.close()


async def test_a_full_buffer_blocks_and_goes_on() -> None:
    driver = Scripted()
    driver.gate.clear()
    sender = producer(driver, buffer_bytes_max=4000, send_timeout=0.05)
    sent = [await sender.send("t", b"x" * 744) for _ in range(4)]  # 256 bytes each beside the value
    assert sender.buffered_bytes == 4000
    with pytest.raises(BufferFullError, match="4000 of 4000 bytes"):
        await sender.send("t", b"x" * 744)
    blocked = asyncio.ensure_future(sender.send("t", b"x" * 744))
    await asyncio.sleep(0)
    assert not blocked.done()
    driver.gate.set()
    await blocked
    await asyncio.gather(*(asyncio.ensure_future(_wait(each)) for each in sent))
    await sender.close()
    assert sender.buffered_bytes == 0


async def _wait(delivery: Any) -> Placed:
    placed: Placed = await delivery
    return placed


async def test_a_buffer_serves_who_came_first_and_forgets_who_left() -> None:
    driver = Scripted()
    driver.gate.clear()
    sender = producer(driver, buffer_bytes_max=1000)
    await sender.send("t", b"x" * 744)
    waiting = [asyncio.ensure_future(sender.send("t", b"%d" % at)) for at in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    driver.gate.set()
    await asyncio.gather(*waiting[1:])
    await sender.close()
    assert driver.log[1:] == [b"1", b"2"]
    assert sender.buffered_bytes == 0


async def test_close_flushes_and_then_takes_nothing() -> None:
    driver = Scripted()
    sender = producer(driver, linger_ms=60_000)
    for at in range(10):
        await sender.send("t", b"%d" % at)
    await sender.close()
    assert len(driver.log) == 10
    assert len(driver.attempts) == 1
    with pytest.raises(ClosedError):
        await sender.send("t", b"late")


async def test_a_close_that_is_interrupted_tells_what_is_known() -> None:
    driver = Scripted()
    driver.gate.clear()
    sender = producer(driver, batch_records_max=1)
    flying, waiting = [await sender.send("t", b"%d" % at) for at in range(2)]
    await until(lambda: driver.attempts, "the first attempt")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await sender.close()
    with pytest.raises(UnknownOutcomeError):
        await flying
    with pytest.raises(ClosedError):
        await waiting


async def test_who_stops_waiting_takes_nothing_back() -> None:
    driver = Scripted()
    driver.gate.clear()
    sender = producer(driver)
    delivery = await sender.send("t", b"v")
    waiter = asyncio.ensure_future(_wait(delivery))
    await asyncio.sleep(0)
    waiter.cancel()
    driver.gate.set()
    assert (await delivery).offset == 0
    await sender.close()


async def test_a_sender_that_crashed_fails_what_comes_later_at_once() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it is told of the crash
    driver = Scripted(lambda batch: [Placed(batch.topic, 0, int("no offset"))])
    sending = producer(driver)
    with pytest.raises(UnknownOutcomeError, match=r"crashed.*ValueError"):
        await sending.send_and_wait("t", b"first")
    with pytest.raises(ClosedError, match="the producer of t crashed; create a new one"):
        await sending.send_and_wait("t", b"second")
    assert sending.buffered_bytes == 0
    assert (await sending.send_and_wait("another", b"third")).offset == 0


async def test_linger_makes_one_batch_of_many() -> None:
    driver = Scripted()
    sender = producer(driver, linger_ms=10_000, batch_records_max=5)
    for at in range(10):
        await sender.send("t", b"%d" % at)
        await asyncio.sleep(0)
    await until(lambda: len(driver.log) == 10, "two full batches")  # without waiting for the linger
    assert [len(batch.records) for batch in driver.attempts] == [5, 5]
    await sender.close()
