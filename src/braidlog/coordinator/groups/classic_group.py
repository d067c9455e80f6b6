"""One classic consumer group as a state machine: members elect a leader, which assigns the partitions.

Does not interpret metadata and assignments: they are bytes of the client protocol. Time is an argument.

    EMPTY ──join──▶ JOINING ──all rejoined, or time is up──▶ SYNCING ──the leader's assignment──▶ STABLE
      ▲             ▲  └──no member left──▶ EMPTY               │                                    │
      └─────────────┴─────────── a member joins, leaves, changes its metadata or expires ────────────┘

Invariants: the generation grows by one with each round and never decreases. A generation has one leader and at most
one assignment. Every round and every wait for an assignment ends. Requests of an old generation, or of a replaced
static member, are rejected. `take_ready` returns what must be journalled before any member gets a response.
"""

from collections.abc import Iterable, Sequence

import msgspec

from braidlog.coordinator.groups.group import GROUP_BYTES, MEMBER_BYTES, MEMBERS_MAX, StaleGeneration, check_size
from braidlog.coordinator.groups.messages import (
    ClassicGroupImage,
    ClassicMember,
    Joined,
    Joining,
    MemberIdRequired,
    Ready,
    State,
    Synced,
    Ticket,
    check_opaque,
)
from braidlog.coordinator.groups.roster import Roster
from braidlog.model.errors import BrokerError, Reason

INITIAL_DELAY_MS = 300
"""How long the first member of an empty group waits for others, so that a fleet starts as one generation."""


class ClassicGroup(Roster[ClassicMember]):
    """Join, sync, heartbeat, leave and expiry of one group."""

    def __init__(
        self,
        name: str,
        *,
        generation: int = 0,
        initial_delay_ms: int = INITIAL_DELAY_MS,
        members_max: int = MEMBERS_MAX,
    ) -> None:
        self.name = name
        self.counted_bytes = 0
        self._members_max = members_max
        self.generation = generation
        self._initial_delay_ms = initial_delay_ms
        self._settled: list[Ticket] = []
        self._clear()

    def _clear(self) -> None:
        self.state = State.EMPTY
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.changed_ms = 0
        self._members: dict[str, ClassicMember] = {}
        self._statics: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        self._pending: dict[str, int] = {}
        """Ids given to members that have not rejoined yet, with their expiry time."""
        self._joins: dict[str, list[Ticket]] = {}
        self._syncs: dict[str, list[Ticket]] = {}
        self._synced: set[str] = set()
        self._due_ms = 0
        self._initial_until_ms: int | None = None
        self._has_grown = False
        self._must_keep = False
        self._held_bytes: int | None = None
        """None: must be computed again."""

    # -- what is kept ----------------------------------------------------------------------------------------

    @property
    def has_members(self) -> bool:
        return bool(self._members or self._pending)

    @property
    def held_bytes(self) -> int:
        """Approximate memory use."""
        if self._held_bytes is None:
            brought = sum(member.brought_bytes for member in self._members.values())
            self._held_bytes = GROUP_BYTES + (len(self._members) + len(self._pending)) * MEMBER_BYTES + brought
        return self._held_bytes

    def image(self) -> ClassicGroupImage:
        return ClassicGroupImage(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            self.members,
            self.state is State.STABLE,
            self.changed_ms,
        )

    def restore(self, image: ClassicGroupImage | None, now_ms: int) -> None:
        """Restore the stored state after a restart or a failed journal write. Waiting members must rejoin.

        Every member gets its full session timeout.
        """
        for tickets in (*self._joins.values(), *self._syncs.values()):
            self._refuse(tickets, Reason.REBALANCE_IN_PROGRESS, "the group was reset")
        self._clear()
        if image is None:
            return
        self.generation, self.changed_ms = image.generation, image.changed_ms
        self.protocol_type, self.protocol, self.leader = image.protocol_type, image.protocol, image.leader
        self._members = {member.member: member for member in image.members}
        self._statics = {member.instance: member.member for member in image.members if member.instance is not None}
        self._seen = dict.fromkeys(self._members, now_ms)
        if self._members:
            self.state = State.STABLE if image.is_assigned else State.SYNCING
            self._due_ms = now_ms + self._rebalance_timeout_ms()

    def take_ready(self) -> Ready:
        self._held_bytes = None if self._must_keep else self._held_bytes
        ready = Ready(self._must_keep, self._settled)
        self._must_keep, self._settled = False, []
        return ready

    # -- joining ---------------------------------------------------------------------------------------------

    def join(self, asked: Joining, new_id: str, now_ms: int) -> Ticket:
        """Join or rejoin. The ticket is settled once the generation is known, often later."""
        self._check_joining(asked)
        if asked.member:
            member = self._known_or_pending(asked)
        elif asked.instance is not None and asked.instance in self._statics:
            return self._take_over(asked, new_id, now_ms)
        elif asked.id_required and asked.instance is None:
            self._check_size()
            self._held_bytes = None
            self._pending[new_id] = now_ms + asked.session_timeout_ms
            self._has_grown = True
            raise MemberIdRequired(self.name, new_id)
        else:
            self._check_size()
            member = new_id
        self._pending.pop(member, None)
        known = self._members.get(member)
        if known is None:
            ticket = self._enter(member, asked, now_ms)
            ticket.is_first = not asked.member and asked.instance is None
            return ticket
        self._seen[member] = now_ms
        same = known.protocols == asked.protocols
        if (self.state is State.SYNCING and same) or (self.state is State.STABLE and same and member != self.leader):
            # The response for this generation was lost, or a follower repeats its join: nothing changes.
            return self._join_answer(member, members=self.state is State.SYNCING)
        self._put_member(member, asked)
        return self._enter_round(member, now_ms)

    def _check_joining(self, asked: Joining) -> None:
        asked.check()
        others = [m for m in self._members.values() if m.member != asked.member and not _is_same(m, asked)]
        if others:
            self._check_common(asked, others)

    def _check_common(self, asked: Joining, others: Sequence[ClassicMember]) -> None:
        spoken = _common(others) & {name for name, _ in asked.protocols}
        if asked.protocol_type != self.protocol_type or not spoken:
            raise BrokerError(
                Reason.INCONSISTENT_PROTOCOLS,
                f"the members of group {self.name!r} use {self.protocol_type!r} and have no protocol in common with "
                f"this one of {asked.protocol_type!r}",
            )

    def _check_size(self) -> None:
        """Check the group size. Ids given to pending members count, which bounds their number."""
        check_size(self.name, len(self._members) + len(self._pending), self._members_max)

    def _known_or_pending(self, asked: Joining) -> str:
        if asked.instance is None and asked.member in self._pending:
            return asked.member
        self._find(asked.member, asked.instance)
        return asked.member

    def _put_member(self, member: str, asked: Joining) -> None:
        self._held_bytes = None
        self._members[member] = ClassicMember(
            member,
            asked.instance,
            asked.client,
            asked.host,
            asked.session_timeout_ms,
            asked.rebalance_timeout_ms,
            asked.protocols,
        )
        if asked.instance is not None:
            self._statics[asked.instance] = member
        self.protocol_type = asked.protocol_type

    def _enter(self, member: str, asked: Joining, now_ms: int) -> Ticket:
        self._put_member(member, asked)
        self._seen[member] = now_ms
        self._has_grown = True
        return self._enter_round(member, now_ms)

    def _enter_round(self, member: str, now_ms: int) -> Ticket:
        if self.state is State.EMPTY:
            self.begin_round(now_ms)
            if self._initial_delay_ms:
                self._initial_until_ms = self._due_ms
                self._due_ms = min(now_ms + self._initial_delay_ms, self._due_ms)
            self._has_grown = False
        elif self.state is not State.JOINING:
            self.begin_round(now_ms)
        ticket = Ticket(member)
        self._joins.setdefault(member, []).append(ticket)
        self._maybe_end_round(now_ms)
        return ticket

    def _take_over(self, asked: Joining, new_id: str, now_ms: int) -> Ticket:
        """Replace a static member that restarted: the same seat under a new id. The old id is fenced."""
        assert asked.instance is not None
        old = self._members.pop(self._statics[asked.instance])
        self._seen.pop(old.member)
        for waiting in (self._joins, self._syncs):
            self._refuse(
                waiting.pop(old.member, []), Reason.FENCED_INSTANCE, f"{asked.instance!r} joined from another client"
            )
        led, was_synced = self.leader == old.member, old.member in self._synced
        self._synced.discard(old.member)
        self._put_member(new_id, asked)
        self._seen[new_id] = now_ms
        if led:
            self.leader = new_id
        if self.state is State.STABLE and self._choose_protocol() == self.protocol:
            self._members[new_id] = msgspec.structs.replace(self._members[new_id], assignment=old.assignment)
            if was_synced:
                self._synced.add(new_id)
            self._must_keep = True
            skips = led and asked.knows_skipping
            # A leader that cannot skip the assignment must not learn that it leads: it would assign without a round.
            return self._join_answer(
                new_id, members=skips, skip=skips, leader=self.leader if skips or not led else old.member
            )
        return self._enter_round(new_id, now_ms)

    def _join_answer(self, member: str, *, members: bool, skip: bool = False, leader: str | None = None) -> Ticket:
        ticket = Ticket(member)
        self._settle(ticket, self._answer(member, members=members, skip=skip, leader=leader))
        return ticket

    def _answer(self, member: str, *, members: bool = True, skip: bool = False, leader: str | None = None) -> Joined:
        led_by = self.leader if leader is None else leader
        shown: list[tuple[str, str | None, bytes]] = []
        if members and led_by == member:
            shown = [(m.member, m.instance, m.metadata(self.protocol)) for m in self.members]
        return Joined(self.generation, self.protocol_type, self.protocol, led_by, member, shown, skip)

    def cancel_wait(self, ticket: Ticket, now_ms: int) -> None:
        """End a disconnected client's wait. The member stays for its session, or goes if no client knows its id."""
        for waiting in (self._joins, self._syncs):
            tickets = waiting.get(ticket.member, [])
            if ticket in tickets:
                tickets.remove(ticket)
                session_ms = self._members[ticket.member].session_timeout_ms
                self._seen[ticket.member] = now_ms - session_ms - 1 if ticket.is_first else now_ms
                if not tickets:
                    del waiting[ticket.member]

    # -- a round ---------------------------------------------------------------------------------------------

    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def begin_round(self, now_ms: int) -> None:
        for tickets in self._syncs.values():
            self._refuse(tickets, Reason.REBALANCE_IN_PROGRESS, f"group {self.name!r} starts a rebalance")
        self._syncs.clear()
        self._initial_until_ms = None
        self.state = State.JOINING
        self._due_ms = now_ms + self._rebalance_timeout_ms()

    def _maybe_end_round(self, now_ms: int) -> None:
        """End the round once every member has rejoined, and the first round of a group only after its delay."""
        if self.state is not State.JOINING:
            return
        waits_on = self._initial_until_ms is not None and self._members
        missing = self._pending or self._members.keys() - self._joins.keys()
        if not missing and not waits_on:
            self._end_round(now_ms)

    def _round_is_due(self, now_ms: int) -> None:
        until = self._initial_until_ms
        if until is not None and self._has_grown and now_ms < until:
            # Members are still joining: extend the delay, up to the rebalance timeout.
            self._due_ms = min(now_ms + self._initial_delay_ms, until)
            self._has_grown = False
            return
        self._end_round(now_ms)

    def _end_round(self, now_ms: int) -> None:
        for member in [m for m in self._members.values() if m.member not in self._joins and m.instance is None]:
            self._unseat(member.member)
        if self._members and not self._joins:
            # Only static members, and none has rejoined: they stay until their sessions expire.
            self._due_ms = now_ms + self._rebalance_timeout_ms()
            return
        if self.leader not in self._joins:
            self.leader = next(iter(self._joins), "")
        self.generation += 1
        self._must_keep = True
        self._initial_until_ms = None
        self._synced.clear()
        self._members = {
            name: msgspec.structs.replace(member, assignment=b"") for name, member in self._members.items()
        }
        self.protocol = self._choose_protocol() if self._members else ""
        self.state = State.SYNCING if self._members else State.EMPTY
        self._due_ms = now_ms + self._rebalance_timeout_ms()
        joins, self._joins = self._joins, {}
        for name, tickets in joins.items():
            self._seen[name] = now_ms
            for ticket in tickets:
                self._settle(ticket, self._answer(name))

    def _choose_protocol(self) -> str:
        """Each member votes for its first protocol that all members support."""
        common = _common(self._members.values())
        votes: dict[str, int] = {}
        first = self._members.get(self.leader)
        for member in (*([first] if first else []), *self._members.values()):
            vote = next(name for name, _ in member.protocols if name in common)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _settle(self, ticket: Ticket, answer: Joined | Synced) -> None:
        ticket.answer = answer
        self._settled.append(ticket)

    def _refuse(self, tickets: Iterable[Ticket], reason: Reason, why: str) -> None:
        for ticket in tickets:
            ticket.error = BrokerError(reason, why)
            self._settled.append(ticket)

    # -- an assignment ---------------------------------------------------------------------------------------

    def sync(
        self,
        member: str,
        generation: int,
        instance: str | None,
        spoken: tuple[str | None, str | None],
        assignments: Sequence[tuple[str, bytes]],
        now_ms: int,
    ) -> Ticket:
        """Return a member's assignment; the leader sends all. `spoken`: (protocol type, protocol), None if not sent."""
        self._check(member, generation, instance)
        for said, known in zip(spoken, (self.protocol_type, self.protocol), strict=True):
            if said is not None and said != known:
                raise BrokerError(
                    Reason.INCONSISTENT_PROTOCOLS, f"group {self.name!r} uses {known!r}, the member sent {said!r}"
                )
        self._seen[member] = now_ms
        if self.state is State.JOINING:
            raise self._in_progress()
        ticket = Ticket(member)
        self._synced.add(member)
        if self.state is State.SYNCING and member != self.leader:
            self._syncs.setdefault(member, []).append(ticket)
            return ticket
        if self.state is State.SYNCING:
            self._assign(dict(assignments), now_ms)
        self._settle(ticket, self._sync_answer(member))
        return ticket

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        check_opaque(sum(len(data) for data in assignments.values()))
        for name, member in self._members.items():
            self._members[name] = msgspec.structs.replace(member, assignment=assignments.get(name, b""))
        self.state = State.STABLE
        self._must_keep = True
        syncs, self._syncs = self._syncs, {}
        for name, tickets in syncs.items():
            self._seen[name] = now_ms
            for ticket in tickets:
                self._settle(ticket, self._sync_answer(name))

    def _sync_answer(self, member: str) -> Synced:
        return Synced(self.protocol_type, self.protocol, self._members[member].assignment)

    # -- staying and leaving ---------------------------------------------------------------------------------

    def heartbeat(self, member: str, generation: int, instance: str | None, now_ms: int) -> None:
        self._check(member, generation, instance)
        self._seen[member] = now_ms
        if self.state is State.JOINING:
            raise self._in_progress()

    def leave(self, member: str, instance: str | None, now_ms: int) -> None:
        """Remove a member. A static member may be removed by its instance alone."""
        if instance is None and self._pending.pop(member, None) is not None:
            self._held_bytes = None
            self._maybe_end_round(now_ms)
            return
        found = self._find(member or self._statics.get(instance or "", ""), instance)
        self._unseat(found.member)
        self._lost_some(now_ms)

    def tick(self, now_ms: int) -> list[str]:
        """Apply timeouts: remove expired members, end rounds that are due. Returns the removed members."""
        for member in [member for member, until in self._pending.items() if now_ms > until]:
            del self._pending[member]
            self._held_bytes = None
        expired = [m.member for m in self.members if self._is_overdue(m, now_ms)]
        if self.state is State.SYNCING and now_ms >= self._due_ms:
            # The leader is one of them, or an assignment would exist, so this always starts a new round.
            expired += [name for name in self._members if name not in self._synced and name not in expired]
        for member in expired:
            self._unseat(member)
        if expired:
            self._lost_some(now_ms)
        else:
            self._maybe_end_round(now_ms)
        if self.state is State.JOINING and now_ms >= self._due_ms:
            self._round_is_due(now_ms)
        return expired

    def _is_overdue(self, member: ClassicMember, now_ms: int) -> bool:
        """Whether the session expired. A member that waits for a response owes no heartbeat."""
        if member.member in self._joins or member.member in self._syncs:
            return False
        return now_ms - self._seen[member.member] > member.session_timeout_ms

    def next_due_ms(self) -> int:
        """When a waiting caller must call `tick`."""
        return self._due_ms

    def _lost_some(self, now_ms: int) -> None:
        if self.state in (State.STABLE, State.SYNCING):
            self.begin_round(now_ms)
        self._maybe_end_round(now_ms)

    def _unseat(self, member: str) -> None:
        self._held_bytes = None
        found = self._members.pop(member)
        self._seen.pop(member)
        self._synced.discard(member)
        if found.instance is not None and self._statics.get(found.instance) == member:
            del self._statics[found.instance]
        for waiting in (self._joins, self._syncs):
            self._refuse(waiting.pop(member, []), Reason.MEMBER_NOT_FOUND, f"{member!r} was removed from {self.name!r}")

    # -- fences ----------------------------------------------------------------------------------------------

    def check_commit(self, member: str, generation: int, instance: str | None, now_ms: int) -> None:
        """Raise for a commit by an unknown member, of an old generation, or before the assignment."""
        if not member and generation < 0 and instance is None and not self._members:
            return
        self._check(member, generation, instance)
        self._seen[member] = now_ms
        if self.state is State.SYNCING:
            raise self._in_progress()

    def check_transactional(self, member: str, generation: int, instance: str | None) -> None:
        """The same for a transactional commit. One without member data is fenced by its producer epoch alone."""
        if member or generation >= 0 or instance is not None:
            self._check(member, generation, instance)

    def _find(self, member: str, instance: str | None) -> ClassicMember:
        if instance is not None:
            present = self._statics.get(instance)
            if present is not None and present != member:
                raise BrokerError(
                    Reason.FENCED_INSTANCE, f"static member {instance!r} of group {self.name!r} has a newer instance"
                )
        found = self._members.get(member)
        if found is None or (found.instance != instance and instance is not None):
            raise BrokerError(Reason.MEMBER_NOT_FOUND, f"group {self.name!r} has no member {member[:60]!r}")
        return found

    def _check(self, member: str, generation: int, instance: str | None) -> ClassicMember:
        found = self._find(member, instance)
        if generation != self.generation:
            raise StaleGeneration(self.name, member, current=self.generation, requested=generation)
        return found

    def _in_progress(self) -> BrokerError:
        return BrokerError(
            Reason.REBALANCE_IN_PROGRESS,
            f"group {self.name!r} rebalances after generation {self.generation}: join again",
        )


def _is_same(member: ClassicMember, asked: Joining) -> bool:
    return asked.instance is not None and member.instance == asked.instance


def _common(members: Iterable[ClassicMember]) -> set[str]:
    spoken = [{name for name, _ in member.protocols} for member in members]
    return set.intersection(*spoken) if spoken else set()
