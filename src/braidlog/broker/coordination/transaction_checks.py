"""Verifies with a transaction's coordinator, here or on another node, that it is open and includes a partition.

Does not handle: transactions, the use of the answer (`partition/produce/transaction_verification.py`).
"""

from typing import Final

import msgspec

from braidlog.broker.coordination.coordinators import Coordinators
from braidlog.broker.forwarding import Forwarding, read_asked
from braidlog.partition.produce.transaction_verification import Question, Verified

CALL: Final = "transaction-check"


class TransactionChecks:
    """Asks coordinators whether transactions are open."""

    def __init__(self, coordinators: Coordinators, forwarding: Forwarding) -> None:
        self._coordinators = coordinators
        self._forwarding = forwarding
        forwarding.answers[CALL] = self.handle_call

    async def verify(self, question: Question) -> Verified:
        """Return the coordinator's answer. Raise if the transaction does not include the partition, or no
        coordinator answers."""
        # Verifying twice has no further effect: retry after a timeout.
        return await self._forwarding.at_owner(CALL, question, Verified, lambda: self._here(question))

    async def handle_call(self, body: bytes) -> bytes:
        """Verify for another node."""
        return msgspec.msgpack.encode(await self._here(read_asked(body, Question)))

    async def _here(self, question: Question) -> Verified:
        producer = question.name, question.producer_id, question.epoch
        async with self._coordinators.settled_after(question.name) as coordinator:
            if question.adds or isinstance(question.of, str):
                return await coordinator.transactions.verify_added(*producer, question.of, begins=question.begins)
            return coordinator.transactions.verify(*producer, *question.of)
