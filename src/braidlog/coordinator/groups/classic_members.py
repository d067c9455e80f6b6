"""Members of consumer groups that use the classic protocol: each join, sync and heartbeat is translated.

Invariant: a classic member receives only what other members receive. Its join is a report, its generation is its
epoch, and its sync requests the current assignment.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from braidlog.codec.errors import ProtocolError
from braidlog.coordinator.consumer_groups.group import ConsumerGroup, unknown_member
from braidlog.coordinator.consumer_groups.messages import JOIN, ClassicSide, Heartbeat
from braidlog.coordinator.consumer_groups.service import ConsumerGroups
from braidlog.coordinator.groups.classic_group import ClassicGroup
from braidlog.coordinator.groups.classic_service import check_timeouts, name_member
from braidlog.coordinator.groups.messages import Joined, Joining, MemberIdRequired, Synced
from braidlog.coordinator.groups.migration import GroupConverter
from braidlog.coordinator.groups.registry import GroupRegistry
from braidlog.coordinator.state_limits import NODE
from braidlog.model.errors import BrokerError, Reason


class ClassicMembers:
    """The member operations of `ClassicGroups`, for consumer groups."""

    def __init__(self, registry: GroupRegistry, consumer: ConsumerGroups, migration: GroupConverter) -> None:
        self._registry = registry
        self._consumer = consumer
        self._migration = migration
        self._metadata = migration.metadata

    async def join(self, group: str, asked: Joining, *, by: str = NODE) -> Joined:
        found = self._find(group, asked.member)
        asked.check()
        check_timeouts(asked)
        if asked.protocol_type != self._metadata.protocol_type:
            raise BrokerError(
                Reason.INCONSISTENT_PROTOCOLS,
                f"members of group {group!r} use the consumer protocol, this member uses {asked.protocol_type!r}",
            )
        found.check_protocols(asked.member, (name for name, _ in asked.protocols))
        new_id = name_member(asked.instance or asked.client)
        if not asked.member and asked.id_required and asked.instance is None:
            raise MemberIdRequired(group, new_id)
        if asked.member and asked.instance is not None:
            found.find_classic(asked.member, asked.instance)
        report = self._report(asked, asked.member or new_id, by)
        with self._while_it_lasts(group, report.member):
            answer = await self._consumer.heartbeat(group, report)
        return Joined(answer.epoch, asked.protocol_type, asked.protocols[0][0], "", answer.member)

    def _report(self, asked: Joining, member: str, by: str) -> Heartbeat:
        try:
            topics, owned = self._metadata.subscription(asked.protocols[0][1])
        except ProtocolError as error:
            raise BrokerError(
                Reason.INCONSISTENT_PROTOCOLS, f"the subscription of member {member[:60]!r} cannot be read: {error}"
            ) from None
        return Heartbeat(
            member=member,
            epoch=JOIN,
            instance=asked.instance,
            client=asked.client,
            host=asked.host,
            by=by,
            rebalance_timeout_ms=asked.rebalance_timeout_ms,
            topics=topics,
            pattern="",
            owned=self._migration.by_id(owned),
            classic=ClassicSide(asked.session_timeout_ms, asked.protocols),
        )

    async def sync(
        self,
        group: str,
        member: str,
        generation: int,
        assignments: Sequence[tuple[str, bytes]],  # noqa: ARG002 - these groups have no leader
        *,
        instance: str | None = None,
        spoken: tuple[str | None, str | None] = (None, None),
    ) -> Synced:
        found, classic = self._find(group, member).find_classic(member, instance)
        known = self._metadata.protocol_type, classic.protocols[0][0]
        if any(said not in (None, word) for said, word in zip(spoken, known, strict=True)):
            raise BrokerError(Reason.INCONSISTENT_PROTOCOLS, f"member {member[:60]!r} must use {known}")
        self._find(group, member).check_round(found, generation, self._registry.session_ms(), is_joined=True)
        await self._settled(group)
        return Synced(*known, self._metadata.assignment(self._migration.by_name(found.shares)))

    async def heartbeat(self, group: str, member: str, generation: int, instance: str | None = None) -> None:
        reported_to = self._find(group, member)
        reported_to.find_classic(member, instance)
        with self._while_it_lasts(group, member):
            await self._consumer.refresh(reported_to, member)
        found, _ = reported_to.find_classic(member, instance)
        reported_to.check_round(found, generation, self._registry.session_ms(), is_joined=False)

    async def leave(self, group: str, members: Sequence[tuple[str, str | None]]) -> list[BrokerError | None]:
        """Like `ClassicGroups.leave`."""
        results: list[BrokerError | None] = []
        for member, instance in members:
            try:
                found = self._find(group, member)
                leaving = found.leave_request(member, instance)
                self._registry.put_change(found, found.leave(leaving))
                results.append(None)
            except BrokerError as error:
                results.append(error.with_traceback(None))  # a traceback's frames would keep the error alive in a cycle
        await self._settled(group)
        return results

    @contextmanager
    def _while_it_lasts(self, group: str, member: str) -> Iterator[None]:
        """Translate the error of a group that became classic during a wait: the member rejoins."""
        try:
            yield
        except BrokerError as error:
            found = self._registry.get(group)
            if error.reason is Reason.MEMBER_NOT_FOUND and isinstance(found, ClassicGroup) and found.has_member(member):
                raise BrokerError(
                    Reason.REBALANCE_IN_PROGRESS, f"group {group!r} became a classic group: join again"
                ) from None
            raise

    def _find(self, group: str, member: str) -> ConsumerGroup:
        found = self._registry.get(group)
        if not isinstance(found, ConsumerGroup):
            raise unknown_member(group, member)
        return found

    async def _settled(self, group: str) -> None:
        await self._registry.journal.wait_committed(self._registry.mark_of(group))
