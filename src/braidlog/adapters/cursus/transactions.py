"""Cursus's transactions: translates states and results.

The counts of staged messages and offsets start at zero with each node; nothing depends on them.
"""

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.cursus.producing import ANY_PARTITION, choose_partition, record_of
from braidlog.adapters.cursus.records import encode_whole
from braidlog.adapters.cursus.services import Services
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.broker.forwarding import Call, read_asked
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.state_limits import NODE
from braidlog.coordinator.transactions.transaction import ProducerIdentity, TxnState
from braidlog.partition.produce.append import SEQUENCES, Acks
from braidlog.partition.produce.transaction_verification import Question
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.failures import Failure, echo

NO_PRODUCER = -1
COUNTS_CALL = "cursus-transaction"
COUNTED_MAX = 10_000
"""Maximum open transactions that a node counts; the counts of the oldest are dropped."""
Epoch = tuple[str, int]
"""A transactional id and its epoch."""
Counts = tuple[int, int]
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
    """Parse a producer id that this server issued; anything else matches no producer."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else NO_PRODUCER


class TransactionHandlers:
    """The handlers, and the counts of messages and offsets of each open transaction."""

    def __init__(self) -> None:
        self._messages: dict[Epoch, int] = {}
        self._offsets: dict[Epoch, int] = {}

    async def init_producer(
        self, message: r.InitProducerId, _: Services, conversation: Conversation, coordinator: Coordinator
    ) -> a.ProducerSession:
        txn = await coordinator.transactions.begin_producer(message.transactional_id, by=conversation.principal)
        return a.ProducerSession(message.transactional_id, str(txn.producer_id), txn.epoch)

    async def begin(self, message: r.BeginTxn, _: Services, __: Conversation, coordinator: Coordinator) -> a.TxnBegun:
        name = message.transactional_id
        txn = await coordinator.transactions.begin_transaction(name, _producer(message.producer_id), message.epoch)
        self._own((name, message.epoch), ends=True)
        return a.TxnBegun(name, _STATES[txn.state], message.producer_id, txn.epoch)

    async def publish(self, message: r.TxnPublish, services: Services, _: Conversation) -> a.TxnStaged:
        name, producer_id = message.transactional_id, _producer(message.producer_id)
        partition = ANY_PARTITION if message.partition is None else message.partition
        if partition == ANY_PARTITION:
            # The partition follows from the key or, without one, the producer: a retry must reach the same partition.
            partition = choose_partition(services, message.topic, message.key or message.producer_id.encode())
        services.hosting.partition(message.topic, partition).require_leader()
        place = message.topic, partition
        await services.transaction_checks.verify(Question(name, producer_id, message.epoch, place, adds=True))
        data = encode_whole(
            [record_of(message)],
            services.runtime.now_ms(),
            producer_id=producer_id,
            producer_epoch=message.epoch,
            base_sequence=(message.sequence - 1) % SEQUENCES,
            transactional=True,
        )
        appended = await services.append.append(message.topic, partition, data, acks=Acks.ALL, transactional_id=name)
        staged = self._count(self._messages, (name, message.epoch), not appended.duplicate)
        return a.TxnStaged(name, staged, message.topic, partition)

    async def send_offsets(
        self, message: r.SendOffsetsToTxn, _: Services, conversation: Conversation, coordinator: Coordinator
    ) -> a.TxnOffsetsStaged:
        name = message.transactional_id
        producing = ProducerIdentity(name, _producer(message.producer_id), message.epoch)
        commits = [Commit(message.topic, entry.partition, entry.offset) for entry in message.offsets]

        def guard() -> None:
            group = coordinator.groups.find(message.group)
            for commit in commits:
                group.check_owner(message.member, message.generation, commit.topic, commit.partition)
            coordinator.offsets.check(message.group, commits, forward_only=True)

        staged = await coordinator.pending_commits.stage(
            message.group, producing, commits, guard=guard, by=conversation.principal
        )
        self._offsets.pop((name, message.epoch), None)
        self._count(self._offsets, (name, message.epoch), staged)
        return a.TxnOffsetsStaged(name, staged)

    async def end(
        self, message: r.EndTxn, services: Services, _: Conversation, coordinator: Coordinator
    ) -> a.TxnState | Failure:
        if message.result not in _RESULTS:
            return Failure.of("invalid_result", command="END_TXN", value=echo(message.result))
        name = message.transactional_id
        txn = await coordinator.transactions.end_transaction(
            name, _producer(message.producer_id), message.epoch, commit=_RESULTS[message.result]
        )
        return a.TxnState(name, _STATES[txn.state], *await self._counted((name, message.epoch), services, ends=True))

    async def status(
        self, message: r.TxnStatus, services: Services, _: Conversation, coordinator: Coordinator
    ) -> a.TxnState:
        txn, name = coordinator.transactions.find(message.transactional_id), message.transactional_id
        return a.TxnState(name, _STATES[txn.state], *await self._counted((name, txn.epoch), services, ends=False))

    # -- counts: each node counts what it staged
    # ----------------------------------------------------------------------

    @staticmethod
    def _count(counts: dict[Epoch, int], of: Epoch, more: int) -> int:
        found = counts[of] = counts.pop(of, 0) + more
        if len(counts) > COUNTED_MAX:
            del counts[next(iter(counts))]
        return found

    def _own(self, of: Epoch, *, ends: bool) -> tuple[int, int]:
        if ends:
            return self._messages.pop(of, 0), self._offsets.pop(of, 0)
        return self._messages.get(of, 0), self._offsets.get(of, 0)

    async def _counted(self, of: Epoch, services: Services, *, ends: bool) -> tuple[int, int]:
        """Return the messages and offsets on all nodes, except nodes that do not respond."""
        routing, call = services.routing, Call(COUNTS_CALL, NODE, msgspec.msgpack.encode((*of, ends)), changes=False)
        others = [each for each in routing.numbers if routing.is_live(each) and each != routing.own_number]
        answers = await services.forwarding.together([services.forwarding.ask(node, call) for node in others])
        found = [msgspec.msgpack.decode(each, type=Counts) for each in answers if isinstance(each, bytes)]
        messages, offsets = zip(self._own(of, ends=ends), *found, strict=True)
        return sum(messages), sum(offsets)

    async def answer_counts(self, body: bytes) -> bytes:
        """Return this node's counts to another node."""
        name, epoch, ends = read_asked(body, tuple[str, int, bool])
        return msgspec.msgpack.encode(self._own((name, epoch), ends=ends))
