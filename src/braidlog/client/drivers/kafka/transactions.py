"""Transactions by Kafka's requests: list, describe, begin, write, commit, abort.

Does not handle: records (`driver.py`), when a transaction is over (`engine/transaction.py`).
"""

from typing import Any

from braidlog.client.drivers.kafka.routing import TRANSACTION, Router, only
from braidlog.client.drivers.transactions import (
    OPEN,
    GroupOffsets,
    ListedTransaction,
    PartitionProducer,
    TransactionalProducer,
    TransactionInfo,
    TransactionPartition,
)
from braidlog.client.errors import Address
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.rows import Message


class TransactionsDriver(Router):
    """Reads and changes transactions by requests to coordinators and leaders."""

    async def list_transactions(self, *, open_only: bool) -> list[ListedTransaction]:
        """Ask every broker: each lists the transactions that it coordinates."""
        listed: set[ListedTransaction] = set()
        message = t.ListTransactionsRequest([OPEN] if open_only else [])
        for broker in await self.all_brokers():
            answer: t.ListTransactionsResponse = await self.ask_checked(message, broker)
            listed.update(
                ListedTransaction(
                    transaction_state.transactional_id,
                    transaction_state.transaction_state,
                    transaction_state.producer_id,
                )
                for transaction_state in answer.transaction_states
            )
        return sorted(listed)

    async def describe_transaction(self, name: str) -> TransactionInfo:
        answer: t.DescribeTransactionsResponse = await self._ask_of_transaction(
            name, t.DescribeTransactionsRequest([name])
        )
        described = only(answer.transaction_states, "DescribeTransactions")
        words = f"unknown transactional id {name!r}" if described.error_code == E.TRANSACTIONAL_ID_NOT_FOUND else None
        self.check_code(described.error_code, words, transaction=name)
        return TransactionInfo(
            name,
            described.transaction_state,
            described.producer_id,
            described.producer_epoch,
            described.transaction_timeout_ms,
            described.transaction_start_time_ms if described.transaction_start_time_ms >= 0 else None,
            tuple(
                sorted(
                    TransactionPartition(topic.topic, number)
                    for topic in described.topics
                    for number in topic.partitions
                )
            ),
        )

    async def list_producers(self, topic: str) -> list[PartitionProducer]:
        """Ask every leader: each lists the producers of its partitions."""
        numbers: dict[Address, list[int]] = {}
        for number in range(len((await self.describe(topic)).partitions)):
            numbers.setdefault(await self.leader_of(topic, number), []).append(number)
        producers = []
        for leader, its in numbers.items():
            message = t.DescribeProducersRequest([t.DescribeProducersRequestTopic(topic, its)])
            answer: t.DescribeProducersResponse = await self.ask(message, leader)
            for part in only(answer.topics, "DescribeProducers").partitions:
                self.check_code(part.error_code, part.error_message, place=(topic, part.partition_index))
                producers += [
                    _producer_of(part.partition_index, active_producer) for active_producer in part.active_producers
                ]
        return sorted(producers)

    async def abort_transaction(self, info: TransactionInfo) -> None:
        """Abort the transaction as its restarted producer would, and fence the producer that opened it."""
        message = t.InitProducerIdRequest(info.transactional_id, info.timeout_ms, info.producer_id, info.producer_epoch)
        answer: t.InitProducerIdResponse = await self._ask_of_transaction(info.transactional_id, message)
        self.check_code(answer.error_code, transaction=info.transactional_id)

    # -- writing -----------------------------------------------------------------------------------------------

    async def begin_producer(
        self, name: str, timeout_ms: int, last: TransactionalProducer | None = None
    ) -> TransactionalProducer:
        was = (-1, -1) if last is None else (last.producer_id, last.epoch)
        answer: t.InitProducerIdResponse = await self._ask_of_transaction(
            name, t.InitProducerIdRequest(name, timeout_ms, *was)
        )
        self.check_code(answer.error_code, about=f"transactional id {name!r}", transaction=name)
        return TransactionalProducer(name, answer.producer_id, answer.producer_epoch)

    async def add_to_transaction(self, producer: TransactionalProducer, place: tuple[str, int]) -> None:
        topic, number = place
        message = t.AddPartitionsToTxnRequest(*_named(producer), [t.AddPartitionsToTxnRequestTopic(topic, [number])])
        answer: t.AddPartitionsToTxnResponse = await self._ask_of_transaction(producer.transactional_id, message)
        result = only([part for each in answer.results_by_topic for part in each.results_by_partition], "AddPartitions")
        self.check_code(result.partition_error_code, about=f"{topic}/{number}", transaction=producer.transactional_id)

    async def add_offsets(self, producer: TransactionalProducer, read: GroupOffsets) -> None:
        message = t.AddOffsetsToTxnRequest(*_named(producer), read.group)
        added: t.AddOffsetsToTxnResponse = await self._ask_of_transaction(producer.transactional_id, message)
        self.check_code(added.error_code, transaction=producer.transactional_id)
        topics: dict[str, list[t.TxnOffsetCommitRequestPartition]] = {}
        for (topic, number), offset in read.offsets.items():
            topics.setdefault(topic, []).append(t.TxnOffsetCommitRequestPartition(number, offset))
        commit = t.TxnOffsetCommitRequest(
            producer.transactional_id,
            read.group,
            producer.producer_id,
            producer.epoch,
            read.generation,
            read.member,
            read.instance,
            [t.TxnOffsetCommitRequestTopic(*each) for each in topics.items()],
        )
        answer: t.TxnOffsetCommitResponse = await self.ask_coordinator(read.group, commit)
        for each in (part for topic_result in answer.topics for part in topic_result.partitions):
            self.check_code(each.error_code, about=f"group {read.group!r}", group=read.group)

    async def commit_transaction(self, producer: TransactionalProducer) -> None:
        message = t.EndTxnRequest(*_named(producer), committed=True)
        answer: t.EndTxnResponse = await self._ask_of_transaction(producer.transactional_id, message)
        self.check_code(
            answer.error_code,
            about=f"transactional id {producer.transactional_id!r}",
            transaction=producer.transactional_id,
        )

    async def _ask_of_transaction(self, name: str, message: Message) -> Any:  # noqa: ANN401 - any answer
        return await self.ask(message, await self.coordinator_of(name, TRANSACTION))


def _producer_of(partition: int, described: t.DescribeProducersResponseProducer) -> PartitionProducer:
    return PartitionProducer(
        partition,
        described.producer_id,
        described.producer_epoch,
        *(
            None if each < 0 else each
            for each in (described.last_sequence, described.last_timestamp, described.current_txn_start_offset)
        ),
    )


def _named(producer: TransactionalProducer) -> tuple[str, int, int]:
    return producer.transactional_id, producer.producer_id, producer.epoch
