"""Operations of classic group members: join, sync, heartbeat, leave, commit.

Invariants: a generation or an assignment is durable before any member receives it. If it cannot be journalled, every
waiting member gets the error and the group returns to its stored state. Every wait ends.
"""

import uuid
from collections.abc import Callable, Sequence

from braidlog.coordinator.groups.classic_group import ClassicGroup
from braidlog.coordinator.groups.group import SESSION_TIMEOUT_MS_MAX
from braidlog.coordinator.groups.messages import ClassicGroupImage, Joined, Joining, MemberIdRequired, Synced, Ticket
from braidlog.coordinator.groups.registry import GroupRegistry
from braidlog.coordinator.offsets import Commit, Offsets, check_group_name
from braidlog.coordinator.state_limits import NODE, StateKind
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.runtime import Runtime, Wakeup

REBALANCE_TIMEOUT_MS_MAX = 2**31 - 1
_WAIT_SECONDS_MIN = 0.001

NewId = Callable[[str], str]


def name_member(client: str) -> str:
    """A unique id for a new member that contains its client's name."""
    return f"{client[:100]}-{uuid.uuid4()}" if client.isprintable() else str(uuid.uuid4())


class ClassicGroups:
    """Operations of classic groups."""

    def __init__(
        self, registry: GroupRegistry, offsets: Offsets, runtime: Runtime, new_id: NewId = name_member
    ) -> None:
        self._registry = registry
        self._offsets = offsets
        self._runtime = runtime
        self._new_id = new_id
        self._waiting: dict[Ticket, Wakeup] = {}

    # -- membership ------------------------------------------------------------------------------------------

    async def join(self, group: str, asked: Joining, *, by: str = NODE) -> Joined:
        """Join or rejoin as the principal `by`; waits until the round of joining ends."""
        check_group_name(group)
        check_timeouts(asked)
        found = self._registry.classic(group)
        if found is None:
            if asked.member:
                raise _unknown(group, asked.member)
            found = self._registry.new_classic(group)
        if not asked.member:
            self._registry.holdings.check_room()
        new_id = self._new_id(asked.instance or asked.client)
        with self._registry.holdings.admit(StateKind.GROUPS, group, by):
            try:
                ticket = found.join(asked, new_id, self._registry.session_ms())
            except MemberIdRequired:
                self._registry.register_unstored(found)
                raise
            self._registry.register_unstored(found)
            self._carry_out(found)
        answer = await self._wait(found, ticket)
        assert isinstance(answer, Joined)
        return answer

    async def sync(
        self,
        group: str,
        member: str,
        generation: int,
        assignments: Sequence[tuple[str, bytes]],
        *,
        instance: str | None = None,
        spoken: tuple[str | None, str | None] = (None, None),
    ) -> Synced:
        """A member's assignment; waits until the leader sends it."""
        found = self._find(group, member)
        ticket = found.sync(member, generation, instance, spoken, assignments, self._registry.session_ms())
        self._carry_out(found)
        answer = await self._wait(found, ticket)
        assert isinstance(answer, Synced)
        return answer

    def heartbeat(self, group: str, member: str, generation: int, instance: str | None = None) -> None:
        self._find(group, member).heartbeat(member, generation, instance, self._registry.session_ms())

    async def leave(self, group: str, members: Sequence[tuple[str, str | None]]) -> list[BrokerError | None]:
        """Remove members, given as (id, instance); returns the outcome of each. The id may be empty if an instance is
        given.
        """
        found = self._registry.classic(group)
        results: list[BrokerError | None] = []
        for member, instance in members:
            try:
                if found is None:
                    raise _unknown(group, member)
                found.leave(member, instance, self._registry.session_ms())
                results.append(None)
            except BrokerError as error:
                results.append(error.with_traceback(None))  # a traceback's frames would keep the error alive in a cycle
        if found is not None:
            self._carry_out(found)
            await self._registry.journal.wait_committed(self._registry.mark_of(group))
        return results

    def tick(self, group: ClassicGroup) -> list[str]:
        """Apply timeouts; returns the removed members. Changes are journalled when this returns."""
        removed = group.tick(self._registry.session_ms())
        self._carry_out(group)
        return removed

    def dissolve(self, group: ClassicGroup) -> None:
        """End a group that another group with the same members replaced. Waiting members rejoin the other one."""
        group.restore(None, self._registry.session_ms())
        for ticket in group.take_ready().settled:
            self._wake(ticket)

    # -- commits ---------------------------------------------------------------------------------------------

    async def commit(
        self,
        group: str,
        member: str,
        generation: int,
        commits: Sequence[Commit],
        *,
        instance: str | None = None,
        by: str = NODE,
    ) -> None:
        """Commit as a member of the current generation; or, with an empty id and generation -1, for a group without
        members.
        """
        self.check_commit(group, member, generation, instance)
        await self._offsets.commit(group, commits, by=by)

    def check_commit(self, group: str, member: str, generation: int, instance: str | None) -> None:
        found = self._registry.classic(group)
        if found is not None:
            found.check_commit(member, generation, instance, self._registry.session_ms())
        elif generation >= 0 or member:
            raise _unknown(group, member)

    def check_transactional(self, group: str, member: str, generation: int, instance: str | None) -> None:
        """Raise for a transactional commit by a removed or outdated member. A commit without member data passes."""
        found = self._registry.classic(group)
        if found is not None:
            found.check_transactional(member, generation, instance)
        elif generation >= 0 or member:
            raise _unknown(group, member)

    # -- inside ----------------------------------------------------------------------------------------------

    def _find(self, group: str, member: str) -> ClassicGroup:
        found = self._registry.classic(group)
        if found is None:
            raise _unknown(group, member)
        return found

    def _carry_out(self, group: ClassicGroup) -> None:
        """Carry out the results of the last step: journal first, then wake the waiters."""
        ready = group.take_ready()
        if ready.must_keep:
            try:
                self._registry.put(group)
            except (BrokerError, StorageFault) as error:
                self._undo(group, ready.settled, error)
                raise
        elif not group.has_members and self._registry.image_of(group) is None:
            self._registry.discard_new(group)
        self._registry.recount(group)
        for ticket in ready.settled:
            ticket.mark = self._registry.mark_of(group.name)
            self._wake(ticket)

    def _undo(self, group: ClassicGroup, settled: Sequence[Ticket], error: BrokerError | StorageFault) -> None:
        """Return to the stored state after a failed journal write."""
        image = self._registry.image_of(group)
        assert image is None or isinstance(image, ClassicGroupImage)
        group.restore(image, self._registry.session_ms())
        if image is None:
            self._registry.discard_new(group)
        self._registry.recount(group)
        for ticket in (*settled, *group.take_ready().settled):
            ticket.answer, ticket.error = None, error
            self._wake(ticket)

    def _wake(self, ticket: Ticket) -> None:
        wakeup = self._waiting.get(ticket)
        if wakeup is not None:
            wakeup.wake()

    async def _wait(self, group: ClassicGroup, ticket: Ticket) -> Joined | Synced:
        try:
            while not ticket.is_settled:
                left_ms = group.next_due_ms() - self._registry.session_ms()
                wakeup = self._waiting[ticket] = self._runtime.wakeup(parked=True)
                if not await wakeup.wait(max(left_ms / 1000, _WAIT_SECONDS_MIN)) and not ticket.is_settled:
                    self.tick(group)
        finally:
            self._waiting.pop(ticket, None)
            if not ticket.is_settled:
                group.cancel_wait(ticket, self._registry.session_ms())
        if ticket.error is not None:
            raise ticket.error
        assert ticket.answer is not None
        await self._registry.journal.wait_committed(ticket.mark)
        return ticket.answer


def _unknown(group: str, member: str) -> BrokerError:
    return BrokerError(Reason.MEMBER_NOT_FOUND, f"group {group[:60]!r} has no member {member[:60]!r}")


def check_timeouts(asked: Joining) -> None:
    if not asked.session_timeout_ms_min <= asked.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
        raise BrokerError(
            Reason.INVALID_SESSION_TIMEOUT,
            f"a session timeout is {asked.session_timeout_ms_min} to {SESSION_TIMEOUT_MS_MAX} ms, not "
            f"{asked.session_timeout_ms}",
        )
    if not 0 <= asked.rebalance_timeout_ms <= REBALANCE_TIMEOUT_MS_MAX:
        raise BrokerError(Reason.INVALID_SESSION_TIMEOUT, f"a rebalance timeout is not {asked.rebalance_timeout_ms} ms")
