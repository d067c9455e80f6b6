"""Groups by the classic protocol: members join, one of them shares out, all of them are heard of.

Knows: members' ids, ranges, commits under a generation. Refuses to know: records, when to join again (`client/engine/member.py`).
Invariants: a member that is asked to name itself keeps the id it is given until the group says that it does not know it. A join
may wait for the others, so that each member has a connection of its own for it: a heartbeat must never stand behind a join.
"""

import ssl
from collections.abc import Iterable, Mapping, Sequence

from braidlog.client.drivers.cluster import Place
from braidlog.client.drivers.contract import GroupInfo, GroupMember, MemberName, Membership
from braidlog.client.drivers.kafka.routing import Router, Settings, only
from braidlog.client.drivers.kafka.rules import Forget, rule_of
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import Refusal, RefusedError, UnsupportedError
from braidlog.client.schemes import Target
from braidlog.codec.errors import ProtocolError
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.consumer import PROTOCOL_TYPE, assignment, read_assignment, read_subscription, subscription
from braidlog.wire.kafka.messages import consumer_groups as m
from braidlog.wire.kafka.messages import groups as g

ASSIGNOR = "range"
REBALANCE_TIMEOUT_MS = 60_000
"""How long the others wait for a member to join again. It does so at its next heartbeat, whatever its program does meanwhile."""
_NO_GENERATION = -1
_NOTHING = -1
_NOT_DELETED: dict[int, str] = {
    E.GROUP_ID_NOT_FOUND: "it does not exist",
    E.NON_EMPTY_GROUP: "it has members; stop them first",
    E.GROUP_SUBSCRIBED_TO_TOPIC: "members read this topic; stop them first",
}


class GroupDriver(Router):
    """What a driver asks coordinators."""

    def __init__(self, target: Target, settings: Settings, policy: Policy, tls: ssl.SSLContext | None) -> None:
        super().__init__(target, settings, policy, tls)
        self._ids: dict[tuple[str, str], str] = {}
        """The id of each member that has one, by group and its own name."""

    # -- members -----------------------------------------------------------------------------------------------

    async def join(self, group: str, topics: Sequence[str], who: MemberName) -> Membership:
        """Join and sync: one round. The one whom the coordinator calls leader shares out for all."""
        name = who.name
        joined = await self._enter(group, topics, who)
        if joined.error_code == E.MEMBER_ID_REQUIRED:
            self._ids[group, name] = joined.member_id
            joined = await self._enter(group, topics, who)
        self._check_group(joined.error_code, group, self._ids.get((group, name), ""))
        self._ids[group, name] = joined.member_id
        shares: list[g.SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            shares = await self._share_out(joined.members)
        message = g.SyncGroupRequest(
            group,
            joined.generation_id,
            joined.member_id,
            who.instance,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=ASSIGNOR,
            assignments=shares,
        )
        synced: g.SyncGroupResponse = await self.ask_coordinator(
            group, message, _channel(group, name), REBALANCE_TIMEOUT_MS
        )
        self._check_group(synced.error_code, group, joined.member_id)
        shared = _partitions(synced.assignment)
        mine = tuple((topic, number) for topic in topics for number in shared.get(topic, ()))
        return Membership(group, tuple(topics), joined.member_id, joined.generation_id, mine, who.instance)

    async def _enter(self, group: str, topics: Sequence[str], who: MemberName) -> g.JoinGroupResponse:
        message = g.JoinGroupRequest(
            group,
            self.settings.session_timeout_ms,
            REBALANCE_TIMEOUT_MS,
            self._ids.get((group, who.name), ""),
            who.instance,
            protocol_type=PROTOCOL_TYPE,
            protocols=[g.JoinGroupRequestProtocol(ASSIGNOR, subscription(list(topics)))],
        )
        answer: g.JoinGroupResponse = await self.ask_coordinator(
            group, message, _channel(group, who.name), REBALANCE_TIMEOUT_MS
        )
        return answer

    async def _share_out(self, members: Sequence[g.JoinGroupResponseMember]) -> list[g.SyncGroupRequestAssignment]:
        """Members of other clients may read other topics too: all of them are shared out."""
        wishes = {each.member_id: _topics(each.metadata) for each in members}
        wanted = sorted({topic for topics in wishes.values() for topic in topics})
        told = await self.metadata(wanted)
        counts = {topic.name or "": len(topic.partitions) for topic in told.topics if not topic.error_code}
        return [
            g.SyncGroupRequestAssignment(member, assignment(shares))
            for member, shares in ranges(wishes, counts).items()
        ]

    async def heartbeat(self, membership: Membership) -> None:
        message = g.HeartbeatRequest(membership.group, membership.generation, membership.member, membership.instance)
        answer: g.HeartbeatResponse = await self.ask_coordinator(membership.group, message)
        self._check_group(answer.error_code, membership.group, membership.member)

    async def leave(self, membership: Membership) -> None:
        group, member = membership.group, membership.member
        names = [name for (of, name), known in self._ids.items() if of == group and known == member]
        message = g.LeaveGroupRequest(group, member, [g.LeaveGroupRequestMember(member)])
        try:
            if membership.instance is not None:
                return  # its share is kept for it until its session is over: it may be about to start again
            answer: g.LeaveGroupResponse = await self.ask_coordinator(group, message)
        finally:
            self._forget(group, member)
            for name in names:
                self.end_channel(_channel(group, name), "the member has left")
        self._check_group(answer.error_code, group, member)
        for each in answer.members:
            self._check_group(each.error_code, group, member)

    # -- commits -----------------------------------------------------------------------------------------------

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int], member: Membership | None) -> None:
        partitions = [g.OffsetCommitRequestPartition(number, offset) for number, offset in offsets.items()]
        message = g.OffsetCommitRequest(
            group,
            _NO_GENERATION if member is None else member.generation,
            "" if member is None else member.member,
            None if member is None else member.instance,
            topics=[g.OffsetCommitRequestTopic(topic, partitions=partitions)],
        )
        answer: g.OffsetCommitResponse = await self.ask_coordinator(group, message)
        for each in (part for found in answer.topics for part in found.partitions):
            self._check_group(each.error_code, group, message.member_id)

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Who is about to read on there waits for the transaction that is about to commit there."""
        asked = [g.OffsetFetchRequestTopic(topic, partition_indexes=[partition])]
        return (await self._commits(group, asked, stable=True)).get((topic, partition))

    async def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Of every topic: that is what no list of topics asks for."""
        return await self._commits(group, None, stable=False)

    async def _commits(
        self, group: str, topics: list[g.OffsetFetchRequestTopic] | None, *, stable: bool
    ) -> dict[tuple[str, int], int]:
        # Until version 7 one group, then several: what a version does not have is not written.
        wanted = [g.OffsetFetchRequestGroup(group, topics=topics)]
        message = g.OffsetFetchRequest(group, topics, wanted, require_stable=stable)
        answer: g.OffsetFetchResponse = await self.ask_coordinator(group, message)
        told = answer.groups[0] if answer.groups else answer
        self._check_group(told.error_code, group)
        found: dict[tuple[str, int], int] = {}
        for topic in told.topics:
            for each in topic.partitions:
                self._check_group(each.error_code, group)
                if each.committed_offset != _NOTHING:
                    found[topic.name, each.partition_index] = each.committed_offset
        return found

    # -- looking -----------------------------------------------------------------------------------------------

    async def list_groups(self) -> list[str]:
        """Each broker knows those that it coordinates."""
        found: set[str] = set()
        for broker in await self.all_brokers():
            answer: g.ListGroupsResponse = await self.ask_checked(g.ListGroupsRequest(), broker)
            found.update(each.group_id for each in answer.groups)
        return sorted(found)

    async def describe_group(self, group: str) -> GroupInfo:
        """Each kind has a request of its own; a group that is not of the one is asked for by the other."""
        try:
            told = await self.ask_coordinator(group, m.ConsumerGroupDescribeRequest([group]))
        except UnsupportedError:  # a server from before there were two
            return await self._describe_classic(group)
        found: m.ConsumerGroupDescribeResponseGroup = only(told.groups, "ConsumerGroupDescribe")
        if found.error_code == E.GROUP_ID_NOT_FOUND:
            return await self._describe_classic(group)
        self._check_group(found.error_code, group, words=found.error_message)
        members = [
            _member(each, {topic.topic_name: topic.partitions for topic in each.assignment.topic_partitions})
            for each in found.members
        ]
        return _info(group, found.group_state, found.group_epoch, members, "consumer")

    async def _describe_classic(self, group: str) -> GroupInfo:
        answer: g.DescribeGroupsResponse = await self.ask_coordinator(group, g.DescribeGroupsRequest([group]))
        told = only(answer.groups, "DescribeGroups")
        self._check_group(told.error_code, group, words=told.error_message)
        members = [_member(each, _partitions(each.member_assignment)) for each in told.members]
        return _info(group, told.group_state, _NO_GENERATION, members, "classic")

    async def delete_group(self, group: str) -> None:
        answer: g.DeleteGroupsResponse = await self.ask_coordinator(group, g.DeleteGroupsRequest([group]))
        code = only(answer.results, "DeleteGroups").error_code
        self._check_group(code, group, words=_NOT_DELETED.get(code), about=f"group {group!r}")

    async def delete_offsets(self, group: str, places: Sequence[Place]) -> None:
        topics: dict[str, list[g.OffsetDeleteRequestPartition]] = {}
        for topic, number in places:
            topics.setdefault(topic, []).append(g.OffsetDeleteRequestPartition(number))
        asked = [g.OffsetDeleteRequestTopic(topic, numbers) for topic, numbers in topics.items()]
        answer: g.OffsetDeleteResponse = await self.ask_coordinator(group, g.OffsetDeleteRequest(group, asked))
        self._check_group(answer.error_code, group, words=_NOT_DELETED.get(answer.error_code), about=f"group {group!r}")
        for told in answer.topics:
            for each in told.partitions:
                where = f"{told.name}/{each.partition_index} of group {group!r}"
                self._check_group(each.error_code, group, words=_NOT_DELETED.get(each.error_code), about=where)

    # -- what is wrong -----------------------------------------------------------------------------------------

    def _check_group(self, code: int, group: str, member: str = "", words: str | None = None, about: str = "") -> None:
        if code:
            if rule_of(code).forget is Forget.MEMBER:
                self._forget(group, member)
            raise self.refuse(code, words, about=about, group=group)

    def _forget(self, group: str, member: str) -> None:
        for who in [who for who, known in self._ids.items() if who[0] == group and known == member]:
            del self._ids[who]


def _member(
    told: g.DescribeGroupsResponseMember | m.ConsumerGroupDescribeResponseMember, shares: dict[str, list[int]]
) -> GroupMember:
    by_topic = {topic: tuple(numbers) for topic, numbers in sorted(shares.items())}
    every = tuple(number for numbers in by_topic.values() for number in numbers)
    return GroupMember(told.member_id, every, told.client_id, told.client_host, by_topic)


def _info(group: str, state: str, generation: int, members: Sequence[GroupMember], kind: str) -> GroupInfo:
    topics = sorted({topic for each in members for topic in each.shares})
    shown = tuple(sorted(members, key=lambda each: each.member))
    return GroupInfo(group, state, generation, tuple(topics), shown, kind)


def ranges(wishes: Mapping[str, Iterable[str]], counts: Mapping[str, int]) -> dict[str, dict[str, list[int]]]:
    """Of each topic, neighbouring partitions to each member that reads it; where it does not divide, the first have one more.

    Members stand in the order of their ids, as every client's range assignor has them.
    """
    shares: dict[str, dict[str, list[int]]] = {member: {} for member in wishes}
    for topic in sorted(counts):
        readers = sorted(member for member, topics in wishes.items() if topic in topics)
        if not readers:
            continue
        each, more = divmod(counts[topic], len(readers))
        first = 0
        for at, member in enumerate(readers):
            after = first + each + (at < more)
            if after > first:
                shares[member][topic] = list(range(first, after))
            first = after
    return shares


def _channel(group: str, name: str) -> str:
    return f"member-{group}-{name}"


def _topics(metadata: bytes) -> list[str]:
    """What a member wants to read; one that cannot be understood gets nothing, and the others theirs."""
    try:
        return read_subscription(metadata).topics
    except ProtocolError:
        return []


def _partitions(data: bytes) -> dict[str, list[int]]:
    try:
        return {each.topic: each.partitions for each in read_assignment(data).assigned_partitions}
    except ProtocolError as error:
        raise RefusedError(Refusal.FAILED, "kafka", "", f"the group's assignment cannot be read: {error}") from error
