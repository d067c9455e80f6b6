"""Transactions, as this dialect asks for them.

Knows: its words for states and results. Refuses to know: markers, journals, how anything ends.
The counts of staged messages and offsets are told as they are since this node started; nothing depends on them.
"""

from braidlog.adapters.contract import Conversation
from braidlog.adapters.cursus.producing import ANY_PARTITION, choose_partition, record_of
from braidlog.adapters.cursus.records import encode_whole
from braidlog.adapters.cursus.services import Services
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.transaction import Producing, Transaction, TxnState
from braidlog.partition.append import SEQUENCES, Acks
from braidlog.partition.verification import Question
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.failures import Failure, echo

NO_PRODUCER = -1
_STATES: dict[TxnState, str] = {
    TxnState.EMPTY: "initialized",
    TxnState.ONGOING: "open",
    TxnState.COMMITTING: "committing",
    TxnState.ABORTING: "aborting",
    TxnState.COMMITTED: "committed",
    TxnState.ABORTED: "aborted",
}
_RESULTS = {"commit": True, "abort": False}


def _producer(text: str) -> int:
    """The id we gave, as we wrote it; anything else is nobody's."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else NO_PRODUCER


class TransactionHandlers:
    """The handlers, and how many messages and offsets each open transaction has had."""

    def __init__(self) -> None:
        self._messages: dict[str, int] = {}
        self._offsets: dict[str, int] = {}

    async def init_producer(
        self, message: r.InitProducerId, services: Services, conversation: Conversation
    ) -> a.ProducerSession:
        txn = await services.transactions.begin_producer(message.transactional_id, by=conversation.principal)
        self._messages.pop(message.transactional_id, None)
        self._offsets.pop(message.transactional_id, None)
        return a.ProducerSession(message.transactional_id, str(txn.producer_id), txn.epoch)

    async def begin(self, message: r.BeginTxn, services: Services, _: Conversation) -> a.TxnBegun:
        name = message.transactional_id
        txn = await services.transactions.begin(name, _producer(message.producer_id), message.epoch)
        self._messages[name] = 0
        self._offsets.pop(name, None)
        return a.TxnBegun(name, _STATES[txn.state], message.producer_id, txn.epoch)

    async def publish(self, message: r.TxnPublish, services: Services, _: Conversation) -> a.TxnStaged:
        name, producer_id = message.transactional_id, _producer(message.producer_id)
        partition = ANY_PARTITION if message.partition is None else message.partition
        if partition == ANY_PARTITION:
            # By the key or, without one, by the producer: a retry must come to the same place.
            partition = choose_partition(services, message.topic, message.key or message.producer_id.encode())
        services.hosting.partition(message.topic, partition).require_leader()
        place = message.topic, partition
        await services.transaction_checks.ask(Question(name, producer_id, message.epoch, place, adds=True))
        data = encode_whole(
            [record_of(message)],
            services.world.now_ms(),
            producer_id=producer_id,
            producer_epoch=message.epoch,
            base_sequence=(message.sequence - 1) % SEQUENCES,
            transactional=True,
        )
        appended = await services.append.append(message.topic, partition, data, acks=Acks.ALL, transactional_id=name)
        staged = self._messages[name] = self._messages.get(name, 0) + (not appended.duplicate)
        return a.TxnStaged(name, staged, message.topic, partition)

    async def send_offsets(
        self, message: r.SendOffsetsToTxn, services: Services, conversation: Conversation
    ) -> a.TxnOffsetsStaged:
        name = message.transactional_id
        producing = Producing(name, _producer(message.producer_id), message.epoch)
        commits = [Commit(message.topic, entry.partition, entry.offset) for entry in message.offsets]

        def guard() -> None:
            group = services.groups.find(message.group)
            for commit in commits:
                group.check_owner(message.member, message.generation, commit.topic, commit.partition)
            services.offsets.check(message.group, commits, forward_only=True)

        staged = await services.pending_commits.stage(
            message.group, producing, commits, guard=guard, by=conversation.principal
        )
        self._offsets[name] = staged
        return a.TxnOffsetsStaged(name, staged)

    async def end(self, message: r.EndTxn, services: Services, _: Conversation) -> a.TxnState | Failure:
        if message.result not in _RESULTS:
            return Failure.of("invalid_result", command="END_TXN", value=echo(message.result))
        name = message.transactional_id
        txn = await services.transactions.end(
            name, _producer(message.producer_id), message.epoch, commit=_RESULTS[message.result]
        )
        return self._show(name, txn, self._messages.pop(name, 0), self._offsets.pop(name, 0))

    def status(self, message: r.TxnStatus, services: Services, _: Conversation) -> a.TxnState:
        txn = services.transactions.find(message.transactional_id)
        name = message.transactional_id
        return self._show(name, txn, self._messages.get(name, 0), self._offsets.get(name, 0))

    @staticmethod
    def _show(name: str, txn: Transaction, messages: int, offsets: int) -> a.TxnState:
        return a.TxnState(name, _STATES[txn.state], messages, offsets)
