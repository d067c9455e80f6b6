"""Whether a producer's transaction is open and writes to a partition: asked of its coordinator, here or on another node.

Knows: who coordinates what. Refuses to know: transactions, and what the answer is good for (`partition/verification.py`).
"""

from typing import Final

import msgspec

from braidlog.broker.coordinators import Coordinators
from braidlog.broker.forwarding import Call, Forwarding
from braidlog.coordinator.holdings import NODE
from braidlog.model.errors import BrokerError, NotCoordinatorError, Reason
from braidlog.partition.verification import Question, Verified

CALL: Final = "transaction-check"


class TransactionChecks:
    """The use case."""

    def __init__(self, coordinators: Coordinators, forwarding: Forwarding) -> None:
        self._coordinators = coordinators
        self._forwarding = forwarding
        forwarding.answers[CALL] = self.answer

    async def ask(self, question: Question) -> Verified:
        """Raises if it does not write there, or if nobody can say."""
        try:
            return await self._here(question)
        except NotCoordinatorError as error:
            refusal = error.with_traceback(None)
        call = Call(CALL, NODE, msgspec.msgpack.encode(question), changes=False)  # to ask twice changes nothing more
        answer = await self._forwarding.forward(call, refusal, lambda: self._here(question))
        return answer if isinstance(answer, Verified) else msgspec.msgpack.decode(answer, type=Verified)

    async def answer(self, body: bytes) -> bytes:
        """What another node asks of this one."""
        try:
            question = msgspec.msgpack.decode(body, type=Question)
        except msgspec.MsgspecError as error:
            raise BrokerError(Reason.INVALID_RECORD, f"another node asks about no transaction: {error}") from None
        return msgspec.msgpack.encode(await self._here(question))

    async def _here(self, question: Question) -> Verified:
        producer = question.name, question.producer_id, question.epoch
        async with self._coordinators.settled_after(question.name) as coordinator:
            if question.adds or isinstance(question.of, str):
                return await coordinator.transactions.verify_added(*producer, question.of, begins=question.begins)
            return coordinator.transactions.verify(*producer, *question.of)
