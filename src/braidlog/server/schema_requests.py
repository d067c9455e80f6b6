"""Answers the console's requests for schema records, schema comparisons, permissions and sign-ins.

Rules of topics apply to subjects: a permission on a subject is one on its topic (ADR 35). Does not handle: HTTP, the
meaning of subjects and schemas.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from braidlog.broker.schemas.schema_log import Place
from braidlog.broker.services import Services
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.reporting.node_report import DOOR, Permission, Question, SchemaPage
from braidlog.registry.errors import SIMPLIFY
from braidlog.security.authorization import ANONYMOUS, Operation
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.unauthenticated_limits import AccessGate
from braidlog.server.process.worker_process import OvertimeError, WorkerProcess, WorkerSettings
from braidlog.worker.jobs import LOW, CompareSchemas

COMPARISONS: Final = WorkerSettings(memory_bytes_max=256 * 1024 * 1024, job_seconds_max=5.0, jobs_max=16)
"""One comparison at a time, in a separate process: one that is too complex delays no other job."""
_misfits = msgspec.msgpack.Decoder(list[str])


class SchemaQuestions:
    """Answers requests that may wait, for replicas or for a password check."""

    def __init__(
        self, services: Services, gatekeeper: AccessGate, budget: Budget, *, needs_token: bool = False
    ) -> None:
        """`needs_token`: without tokens and users, the registry accepts the admin token only."""
        self.comparisons = WorkerProcess(COMPARISONS, budget, priority=LOW, name="schemas worker")
        """The caller must run it."""
        self._log = services.schema_log
        self._authorize = services.authorize
        self._users = services.users
        self._gatekeeper = gatekeeper
        self._is_closed = needs_token and not services.authorize.required
        self.answers: dict[str, Callable[[Question], Awaitable[object]]] = {
            "schemas": self._read,
            "append_schemas": self._append,
            "compare_schemas": self._compare,
            "may": self._may,
            "sign_in": self._proves,
        }

    async def _read(self, question: Question) -> SchemaPage:
        return await self._log.read(Place(question.topic, question.position))

    async def _append(self, question: Question) -> SchemaPage:
        return await self._log.append(Place(question.topic, question.position), question.entries)

    async def _compare(self, question: Question) -> list[str]:
        try:
            with await self.comparisons.do(CompareSchemas(), question.payload) as answer:
                return _misfits.decode(answer.payload)
        except OvertimeError:
            limit = f"{COMPARISONS.job_seconds_max:g} s"
        except BrokerError as error:
            if error.reason is not Reason.RECORD_TOO_LARGE:
                raise
            limit = f"{COMPARISONS.memory_bytes_max} bytes of memory"
        raise BrokerError(
            Reason.INVALID_SETTING, f"reading and comparing the schema takes more than {limit}; {SIMPLIFY}"
        )

    async def _may(self, question: Question) -> Permission:
        # Without tokens and users no client can authenticate: a principal's name alone proves nothing.
        who = question.principal if self._authorize.required and question.principal else ANONYMOUS
        if self._authorize.required:
            is_proved = who != ANONYMOUS and (question.door == DOOR or await self._proves(question))
            if not is_proved:
                return Permission(is_known=False, allowed=[])
        elif self._is_closed and question.door != DOOR:
            return Permission(is_known=False, allowed=[])
        wishes = [(Operation(operation), name) for operation, name in question.wishes]
        allowed = [self._authorize.is_allowed(who, operation, name) for operation, name in wishes]
        return Permission(is_known=True, allowed=allowed, principal=who)

    async def _proves(self, question: Question) -> bool:
        """Whether the secret is a configured token or the user's password; a failure is answered after a delay."""
        secret = question.password.encode()
        if self._gatekeeper.holds(question.principal, secret):
            return True

        async def holds() -> bool:
            return await self._users.check_password(question.principal, secret)

        return await self._gatekeeper.verify_proof(question.address, holds)
