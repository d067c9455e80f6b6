"""Whether a producer's transaction is open and writes to a partition: asked of its coordinator, here or on another node.

Knows: who coordinates what. Refuses to know: transactions, and what the answer is good for
(`partition/produce/transaction_verification.py`).
"""

from typing import Final

import msgspec

from braidlog.broker.coordination.coordinators import Coordinators
from braidlog.broker.forwarding import Forwarding, read_asked
from braidlog.partition.produce.transaction_verification import Question, Verified

CALL: Final = "transaction-check"


class TransactionChecks:
    """The use case."""

    def __init__(self, coordinators: Coordinators, forwarding: Forwarding) -> None:
        self._coordinators = coordinators
        self._forwarding = forwarding
        forwarding.answers[CALL] = self.handle_call

    async def verify(self, question: Question) -> Verified:
        """Raises if it does not write there, or if nobody can say."""
        # To ask twice changes nothing more.
        return await self._forwarding.at_owner(CALL, question, Verified, lambda: self._here(question))

    async def handle_call(self, body: bytes) -> bytes:
        """What another node asks of this one."""
        return msgspec.msgpack.encode(await self._here(read_asked(body, Question)))

    async def _here(self, question: Question) -> Verified:
        producer = question.name, question.producer_id, question.epoch
        async with self._coordinators.settled_after(question.name) as coordinator:
            if question.adds or isinstance(question.of, str):
                return await coordinator.transactions.verify_added(*producer, question.of, begins=question.begins)
            return coordinator.transactions.verify(*producer, *question.of)
