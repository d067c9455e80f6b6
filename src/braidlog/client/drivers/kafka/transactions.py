"""Transactions, as Kafka's brokers tell of them and end them.

Knows: which requests do it. Refuses to know: how a transaction is written (`staging.py` does that for Spark's sinks).
"""

from typing import Any

from braidlog.client.drivers.kafka.routing import TRANSACTION, Router, only
from braidlog.client.drivers.transactions import OPEN, ListedTransaction, TransactionInfo, TransactionPartition
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.rows import Message


class TransactionsDriver(Router):
    """What a driver asks brokers."""

    async def list_transactions(self, *, open_only: bool) -> list[ListedTransaction]:
        """Each broker knows those that it coordinates."""
        found: set[ListedTransaction] = set()
        message = t.ListTransactionsRequest([OPEN] if open_only else [])
        for broker in await self.all_brokers():
            answer: t.ListTransactionsResponse = await self.ask(message, broker)
            self.check_code(answer.error_code)
            found.update(
                ListedTransaction(each.transactional_id, each.transaction_state, each.producer_id)
                for each in answer.transaction_states
            )
        return sorted(found)

    async def describe_transaction(self, name: str) -> TransactionInfo:
        answer: t.DescribeTransactionsResponse = await self._ask_of_transaction(
            name, t.DescribeTransactionsRequest([name])
        )
        told = only(answer.transaction_states, "DescribeTransactions")
        words = f"there is no transactional id {name!r}" if told.error_code == E.TRANSACTIONAL_ID_NOT_FOUND else None
        self.check_code(told.error_code, words, transaction=name)
        return TransactionInfo(
            name,
            told.transaction_state,
            told.producer_id,
            told.producer_epoch,
            told.transaction_timeout_ms,
            told.transaction_start_time_ms if told.transaction_start_time_ms >= 0 else None,
            tuple(
                sorted(
                    TransactionPartition(topic.topic, number) for topic in told.topics for number in topic.partitions
                )
            ),
        )

    async def abort_transaction(self, info: TransactionInfo) -> None:
        """As its producer would that starts again: the transaction is aborted, and who had it open is fenced."""
        message = t.InitProducerIdRequest(info.transactional_id, info.timeout_ms, info.producer_id, info.producer_epoch)
        answer: t.InitProducerIdResponse = await self._ask_of_transaction(info.transactional_id, message)
        self.check_code(answer.error_code, transaction=info.transactional_id)

    async def _ask_of_transaction(self, name: str, message: Message) -> Any:  # noqa: ANN401 - any answer
        return await self.ask(message, await self.coordinator_of(name, TRANSACTION))
