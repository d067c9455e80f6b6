"""One consumer group as a state machine (KIP-848): members report what they read, the coordinator assigns partitions.

    subscriptions change ──▶ new targets are computed, the group epoch grows
    a member reports:  it still owns partitions to revoke ──▶ it stays in its epoch, and must revoke them
                       it owns none of them               ──▶ it enters the group epoch, and gets the free
                                                              partitions of its target

Invariants: a partition has at most one owner. The owner keeps it until it reports without it, leaves or is removed.
Epochs never decrease. The group waits for no member beyond its session or rebalance timeout. A step returns a `Change`
and alters nothing: the caller journals the change first, and then applies it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from braidlog.coordinator.consumer_groups.assignors import UNIFORM, Target, Work, assign
from braidlog.coordinator.consumer_groups.messages import (
    JOIN,
    LEAVE,
    PAUSE,
    Change,
    ClassicSide,
    ConsumerGroupImage,
    ConsumerMember,
    Heartbeat,
    HeartbeatAnswer,
    Held,
)
from braidlog.coordinator.consumer_groups.subscriptions import Pattern
from braidlog.coordinator.groups.group import GROUP_BYTES, MEMBERS_MAX, StaleGeneration, check_size
from braidlog.coordinator.groups.messages import State
from braidlog.coordinator.groups.roster import Roster
from braidlog.model.errors import BrokerError, Reason

MEMBERS_AT_ONCE = 50
"""Number of member subscriptions processed between two turns of the event loop."""
NO_CHANGE = Change({})

TopicOf = Callable[[str], tuple[str, int] | None]
"""The id and partition count of a topic by name; None if it does not exist."""


class ConsumerGroup(Roster[ConsumerMember]):
    """Heartbeats, leaves and expiry of one group."""

    def __init__(self, name: str, *, epoch: int = 0, members_max: int = MEMBERS_MAX) -> None:
        self.name = name
        self.counted_bytes = 0
        self.changed_ms = 0
        self.epoch = epoch
        self.assignor = UNIFORM
        self.held_bytes = GROUP_BYTES
        self.patterns: dict[tuple[str, str], Pattern] = {}
        """Resolved patterns, by principal and pattern text."""
        self._members_max = members_max
        self._members: dict[str, ConsumerMember] = {}
        self._statics: dict[str, str] = {}
        self._owners: dict[tuple[str, int], str] = {}
        self._seen: dict[str, int] = {}
        self._revoke_by: dict[str, int] = {}
        self._rejoin_by: dict[str, int] = {}
        self._unreconciled: set[str] = set()
        self._wanted: Counter[str] = Counter()
        self.version = 0
        """Grows with every change that affects targets."""
        self._wishes_version = 0
        self.assigned_version = 0
        """The version for which the current targets were computed."""

    # -- what is kept ----------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self.epoch

    @property
    def is_stale(self) -> bool:
        """Whether the targets must be recomputed or at least checked."""
        return self.version != self.assigned_version and self.has_members

    @property
    def state(self) -> State:
        if not self._members:
            return State.EMPTY
        if self._wishes_version > self.assigned_version:
            return State.ASSIGNING
        return State.RECONCILING if self._unreconciled else State.STABLE

    def image(self) -> ConsumerGroupImage:
        return ConsumerGroupImage(self.epoch, self.assignor, self.changed_ms)

    def restore(self, image: ConsumerGroupImage, members: Iterable[ConsumerMember], now_ms: int) -> None:
        """Restore the stored state. Every member gets its full timeouts. Topics may have changed since."""
        self.epoch, self.assignor, self.changed_ms = image.epoch, image.assignor, image.changed_ms
        self.apply(Change({each.member: each for each in members}), now_ms)
        self._wishes_version, self.assigned_version = 0, 0

    def apply(self, change: Change, now_ms: int) -> None:
        """Apply a change that was journalled."""
        old = [self._members[name] for name in change.members if name in self._members]
        new = [member for member in change.members.values() if member is not None]
        if Counter(each.subscription for each in old) != Counter(each.subscription for each in new):
            self.version += 1
            self._wishes_version = self.version
        left = {each.member: each for each in old}
        for member in new:
            self._put(left.pop(member.member, None), member, now_ms)
        for member in left.values():
            self._remove(member)
        if change.epoch is not None:
            self.epoch, self.assignor = change.epoch, change.assignor
            self._unreconciled = set(self._members)

    def _put(self, old: ConsumerMember | None, new: ConsumerMember, now_ms: int) -> None:
        name = new.member
        self._members[name] = new
        self._seen.setdefault(name, now_ms)
        if new.instance is not None:
            self._statics[new.instance] = name
        if old is None or (old.held is not new.held or old.revoking is not new.revoking):
            if old is not None:
                self._disown(old)
            self._owners.update(dict.fromkeys(_places(new), name))
            self._revoke_by.pop(name, None)
            if new.revoking:
                self._revoke_by[name] = now_ms + new.rebalance_timeout_ms
        if old is None or old.topics is not new.topics:
            self._want([] if old is None else old.topics, -1)
            self._want(new.topics, 1)
        self.held_bytes += new.held_bytes - (0 if old is None else old.held_bytes)
        if new.epoch == self.epoch and new.is_reconciled:
            self._unreconciled.discard(name)
        else:
            self._unreconciled.add(name)

    def _remove(self, member: ConsumerMember) -> None:
        name = member.member
        del self._members[name], self._seen[name]
        self._revoke_by.pop(name, None)
        self._rejoin_by.pop(name, None)
        self._unreconciled.discard(name)
        if member.instance is not None and self._statics.get(member.instance) == name:
            del self._statics[member.instance]
        self._disown(member)
        self._want(member.topics, -1)
        self.held_bytes -= member.held_bytes

    def _disown(self, member: ConsumerMember) -> None:
        for place in _places(member):
            if self._owners.get(place) == member.member:
                del self._owners[place]

    def _want(self, topics: Iterable[str], count: int) -> None:
        for topic in topics:
            self._wanted[topic] += count
            if not self._wanted[topic]:
                del self._wanted[topic]

    # -- joining, reporting, leaving--------------------------------------------------------------------------

    def join_or_update(self, asked: Heartbeat) -> Change:
        """The change that makes the reporting member join or update its subscription. Raises if it is fenced or
        unknown.
        """
        known = self._asking(asked)
        before = known or ConsumerMember(asked.member)
        after = replace(
            before,
            member=asked.member,
            instance=before.instance if asked.instance is None else asked.instance,
            rack=before.rack if asked.rack is None else asked.rack,
            client=asked.client,
            host=asked.host,
            by=asked.by,
            rebalance_timeout_ms=before.rebalance_timeout_ms
            if asked.rebalance_timeout_ms is None
            else asked.rebalance_timeout_ms,
            topics=before.topics if asked.topics is None else sorted(set(asked.topics)),
            pattern=before.pattern if asked.pattern is None else asked.pattern,
            assignor=before.assignor if asked.assignor is None else asked.assignor,
            classic=asked.classic,
        )
        if after == known:
            return NO_CHANGE
        replaced: dict[str, ConsumerMember | None] = {} if before.member == asked.member else {before.member: None}
        return Change({**replaced, asked.member: after})

    def _asking(self, asked: Heartbeat) -> ConsumerMember | None:
        """The reporting member, the static member that it replaces, or None for a new member."""
        if asked.epoch != JOIN:
            reporting = self._find(asked)
            self._check_epoch(reporting, asked)
            return reporting
        holder = None if asked.instance is None else self._statics.get(asked.instance)
        if holder is not None and holder != asked.member:
            # A classic static member sends no pause before a restart, so its successor replaces it.
            if self._members[holder].epoch != PAUSE and not (asked.classic or self._members[holder].classic):
                raise BrokerError(
                    Reason.UNRELEASED_INSTANCE,
                    f"static member {asked.instance!r} of group {self.name!r} is still in use by {holder!r}; stop "
                    "that member first",
                )
            return self._members[holder]
        known = self._members.get(asked.member)
        if known is None:
            check_size(self.name, len(self._members), self._members_max)
        return known

    def _find(self, asked: Heartbeat) -> ConsumerMember:
        if asked.instance is not None and self._statics.get(asked.instance, asked.member) != asked.member:
            raise BrokerError(
                Reason.FENCED_INSTANCE,
                f"static member {asked.instance!r} of group {self.name!r} was replaced by a newer instance",
            )
        return self.find(asked.member)

    def find(self, member: str) -> ConsumerMember:
        found = self._members.get(member)
        if found is None:
            raise unknown_member(self.name, member)
        return found

    def _check_epoch(self, known: ConsumerMember, asked: Heartbeat) -> None:
        if asked.epoch == known.epoch:
            return
        # The response with the new epoch may have been lost; then the member owns only what it still holds.
        owned = asked.owned
        if asked.epoch == known.previous_epoch and owned is not None and _owns_only(owned, known.held):
            return
        raise stale_epoch(self.name, asked.member, known.epoch, asked.epoch)

    def leave(self, asked: Heartbeat) -> Change:
        """The change that removes a member, or pauses a static member until it joins again."""
        known = self._find(asked)
        if asked.epoch == LEAVE:
            return Change({known.member: None})
        return Change({known.member: replace(known, epoch=PAUSE, previous_epoch=PAUSE, revoking={})})

    def note_heartbeat(self, member: str, now_ms: int) -> None:
        self._seen[member] = now_ms

    def note_joined(self, member: str) -> None:
        self._rejoin_by.pop(member, None)

    def reconcile(self, asked: Heartbeat) -> tuple[Change, HeartbeatAnswer]:
        """Move a member towards its target; returns the change and the heartbeat response."""
        known = self.find(asked.member)
        after = known
        if known.member in self._unreconciled:
            after = self._reconciled(known, asked.owned)
        sends = asked.epoch == JOIN or asked.is_whole or after.held is not known.held
        answer = HeartbeatAnswer(after.member, after.epoch, after.shares if sends else None)
        return (NO_CHANGE if after is known else Change({after.member: after})), answer

    def _reconciled(self, member: ConsumerMember, owned: Mapping[str, set[int]] | None) -> ConsumerMember:
        if _owns_some(owned, member.revoking):
            return member
        target = {topic: set(numbers) for topic, numbers in member.target.items()}
        kept = _only(member.held, lambda topic, number: number in target.get(topic, ()))
        given_up = _only(member.held, lambda topic, number: number not in target.get(topic, ()))
        if _owns_some(owned, given_up):
            return replace(member, held=kept, revoking=given_up)
        held = {topic: dict(numbers) for topic, numbers in kept.items()}
        for topic, numbers in target.items():
            for number in numbers - kept.get(topic, {}).keys():
                if self._owners.get((topic, number), member.member) == member.member:
                    held.setdefault(topic, {})[number] = self.epoch
        if held == member.held:
            held = member.held
            if not member.revoking and member.epoch == self.epoch:
                return member
        previous = member.previous_epoch if member.epoch == self.epoch else member.epoch
        return replace(member, held=held, revoking={}, epoch=self.epoch, previous_epoch=previous)

    def expire(self, now_ms: int, session_timeout_ms: int) -> Change:
        """Remove members that missed their session timeout, or did not revoke partitions within their rebalance
        timeout.
        """
        silent = [
            name
            for name, seen in self._seen.items()
            if now_ms - seen
            > (classic.session_timeout_ms if (classic := self._members[name].classic) else session_timeout_ms)
        ]
        slow = [name for due in (self._revoke_by, self._rejoin_by) for name, at in due.items() if now_ms > at]
        return Change(dict.fromkeys((*silent, *slow)))

    # -- targets ---------------------------------------------------------------------------------------------

    def topic_changed(self, topic: str, *, exists: bool, may_see: Callable[[str, str], bool]) -> Iterator[None]:
        """React to a new, grown or deleted topic: targets are recomputed if a member subscribes to it.

        Yields before each pattern, as one match may take milliseconds.
        """
        wanted = topic in self._wanted
        for (by, _), pattern in list(self.patterns.items()):
            yield
            if exists and pattern.matches(topic) and may_see(by, topic):
                pattern.topics.add(topic)
            elif topic not in pattern.topics:
                continue
            else:
                pattern.topics.discard(topic)
            wanted = True
        self.version += wanted

    def patterns_used(self) -> set[tuple[str, str]]:
        return {(member.by, member.pattern) for member in self._members.values() if member.pattern}

    def topics_read(self) -> set[str]:
        return {*self._wanted, *(topic for pattern in self.patterns.values() for topic in pattern.topics)}

    def compute_targets(self, topic_of: TopicOf) -> Work:
        """Compute targets for all current members, in slices. Later changes count for the next computation."""
        members = list(self._members.values())
        previous = {each.member: each.target for each in members}
        counts: dict[str, int] = {}
        known: dict[tuple[object, ...], frozenset[str]] = {}
        wishes = {}
        for number, member in enumerate(members, 1):
            ids = known.get(member.subscription)
            if ids is None:
                found = self.patterns.get((member.by, member.pattern))
                names = {*member.topics, *(() if found is None else found.topics)}
                there = [topic for name in sorted(names) if (topic := topic_of(name)) is not None]
                counts.update(there)
                ids = known[member.subscription] = frozenset(topic for topic, _ in there)
            wishes[member.member] = ids
            if number % MEMBERS_AT_ONCE == 0:
                yield
        return (yield from assign(self.chosen_assignor(), wishes, counts, previous))

    def chosen_assignor(self) -> str:
        """The assignor that most members request."""
        votes = Counter(member.assignor for member in self._members.values() if member.assignor)
        return max(sorted(votes), key=lambda name: votes[name], default=UNIFORM)

    def members_with_new_target(self, target: Target) -> dict[str, ConsumerMember | None]:
        """The members whose target changed."""
        there = ((self._members[name], shares) for name, shares in target.items() if name in self._members)
        return {each.member: replace(each, target=shares) for each, shares in there if each.target != shares}

    def needs_epoch(self, *, is_changed: bool) -> bool:
        """Whether recomputed targets need a new epoch; unchanged targets do not."""
        return is_changed or self._wishes_version > self.assigned_version or not self.epoch

    # -- members that use the classic protocol (join and sync) -----------------------------------------------

    @property
    def is_classic(self) -> bool:
        """Whether all remaining members use the classic protocol."""
        return self.has_members and all(member.classic for member in self._members.values())

    def check_protocols(self, asked: str, protocols: Iterable[str]) -> None:
        """Raise if this member shares no protocol with the group's other classic members, which may have to elect a
        leader later.
        """
        common = set(protocols)
        for member in self._members.values():
            if member.classic is not None and member.member != asked:
                common &= {name for name, _ in member.classic.protocols}
        if not common:
            raise BrokerError(
                Reason.INCONSISTENT_PROTOCOLS,
                f"classic members of group {self.name!r} have no protocol in common with this one",
            )

    def find_classic(self, member: str, instance: str | None) -> tuple[ConsumerMember, ClassicSide]:
        found = self._find(Heartbeat(member=member, epoch=JOIN, instance=instance))
        if found.classic is None:
            raise unknown_member(self.name, member)
        return found, found.classic

    def leave_request(self, member: str, instance: str | None) -> Heartbeat:
        """The leave report of a member: by its id for a classic member, by its instance alone for any."""
        if member:
            self.find_classic(member, instance)
        return Heartbeat(member=member or self._statics.get(instance or "", ""), epoch=LEAVE, instance=instance)

    def check_round(self, member: ConsumerMember, generation: int, now_ms: int, *, is_joined: bool) -> None:
        """Raise if a classic member is in another epoch, or must rejoin to get changes.

        `is_joined`: the member has just joined and syncs.
        """
        if generation != member.epoch:
            raise StaleGeneration(self.name, member.member, current=member.epoch, requested=generation)
        self.note_heartbeat(member.member, now_ms)
        is_behind = member.epoch < self.epoch and not (is_joined and member.revoking)
        if is_behind or (not is_joined and (member.revoking or self._has_more_for(member))):
            self._rejoin_by.setdefault(member.member, now_ms + member.rebalance_timeout_ms)
            raise BrokerError(Reason.REBALANCE_IN_PROGRESS, f"group {self.name!r} is in epoch {self.epoch}: join again")

    def _has_more_for(self, member: ConsumerMember) -> bool:
        """Whether the other members have revoked everything that this member's target still lacks."""
        lacks = [(t, n) for t, numbers in member.target.items() for n in numbers if n not in member.held.get(t, {})]
        return bool(lacks) and not any(place in self._owners for place in lacks)

    # -- fences ----------------------------------------------------------------------------------------------

    def check_commit(self, member: str, epoch: int, places: Iterable[tuple[str, int]]) -> None:
        """Raise if a commit's member is unknown, or has an old epoch and did not own the partitions since. Places are
        by topic id.
        """
        if epoch < 0 and not member and not self._members:
            return
        known = self.find(member)
        if epoch == known.epoch:
            return
        got = [_epoch_of(known, *place) for place in places]
        if epoch > known.epoch or not got or any(each is None or each > epoch for each in got):
            if known.classic is not None:
                raise StaleGeneration(self.name, member, current=known.epoch, requested=epoch)
            raise stale_epoch(self.name, member, known.epoch, epoch)


def _places(member: ConsumerMember) -> list[tuple[str, int]]:
    return [(topic, n) for held in (member.held, member.revoking) for topic, numbers in held.items() for n in numbers]


def _epoch_of(member: ConsumerMember, topic: str, number: int) -> int | None:
    got = member.held.get(topic, {}).get(number)
    return member.revoking.get(topic, {}).get(number) if got is None else got


def _only(held: Held, fits: Callable[[str, int], bool]) -> Held:
    found = {topic: {n: got for n, got in numbers.items() if fits(topic, n)} for topic, numbers in held.items()}
    return {topic: numbers for topic, numbers in found.items() if numbers}


def _owns_some(owned: Mapping[str, set[int]] | None, held: Held) -> bool:
    """Whether a member still owns some of these partitions. A member that does not report them may."""
    if owned is None:
        return bool(held)
    return any(not owned.get(topic, set()).isdisjoint(numbers) for topic, numbers in held.items())


def _owns_only(owned: Mapping[str, set[int]], held: Held) -> bool:
    return all(numbers <= held.get(topic, {}).keys() for topic, numbers in owned.items())


def unknown_member(group: str, member: str) -> BrokerError:
    return BrokerError(
        Reason.MEMBER_NOT_FOUND, f"group {group[:60]!r} has no member {member[:60]!r}; it must join again"
    )


def stale_epoch(group: str, member: str, current: int, said: int) -> BrokerError:
    return BrokerError(
        Reason.STALE_MEMBER_EPOCH, f"member {member[:60]!r} of group {group!r} is in epoch {current}, not {said}"
    )
