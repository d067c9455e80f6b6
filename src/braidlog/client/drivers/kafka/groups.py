"""Groups by the classic protocol: members join, the group leader assigns partitions, members send heartbeats.

Does not handle: records, when to rejoin (`client/engine/member.py`). A member keeps the id that the coordinator gave
it until the coordinator reports it as unknown. A join may wait for other members, so each member has its own
connection for joins: a heartbeat must never queue behind a join.
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
"""How long other members wait for a member to rejoin. It rejoins at its next heartbeat, even while its program is
busy."""
_NO_GENERATION = -1
_NOTHING = -1
_NOT_DELETED: dict[int, str] = {
    E.GROUP_ID_NOT_FOUND: "it does not exist",
    E.NON_EMPTY_GROUP: "it has members; stop them first",
    E.GROUP_SUBSCRIBED_TO_TOPIC: "members read this topic; stop them first",
}


class GroupDriver(Router):
    """Joins, commits and describes groups by requests to coordinators."""

    def __init__(self, target: Target, settings: Settings, policy: Policy, tls: ssl.SSLContext | None) -> None:
        super().__init__(target, settings, policy, tls)
        self._ids: dict[tuple[str, str], str] = {}
        """Member ids, by group and the member's own name."""

    # -- members -----------------------------------------------------------------------------------------------

    async def join(self, group: str, topics: Sequence[str], who: MemberName) -> Membership:
        """Join and sync once. The member that the coordinator elects as leader assigns partitions for the group."""
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
        """Assign the partitions of all topics of all members; members of other clients may read other topics."""
        wishes = {each.member_id: _topics(each.metadata) for each in members}
        subscribed = sorted({topic for topics in wishes.values() for topic in topics})
        metadata = await self.metadata(subscribed)
        counts = {topic.name or "": len(topic.partitions) for topic in metadata.topics if not topic.error_code}
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
                return  # a static member keeps its partitions until its session expires: it may restart
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
        for each in (part for topic_result in answer.topics for part in topic_result.partitions):
            self._check_group(each.error_code, group, message.member_id)

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Return a committed offset; waits for a pending transaction that commits it."""
        asked = [g.OffsetFetchRequestTopic(topic, partition_indexes=[partition])]
        return (await self._commits(group, asked, stable=True)).get((topic, partition))

    async def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return commits of every topic: the request names no topics."""
        return await self._commits(group, None, stable=False)

    async def _commits(
        self, group: str, topics: list[g.OffsetFetchRequestTopic] | None, *, stable: bool
    ) -> dict[tuple[str, int], int]:
        # Until version 7 one group, then several: fields that a version lacks are not written.
        groups = [g.OffsetFetchRequestGroup(group, topics=topics)]
        message = g.OffsetFetchRequest(group, topics, groups, require_stable=stable)
        answer: g.OffsetFetchResponse = await self.ask_coordinator(group, message)
        committed = answer.groups[0] if answer.groups else answer
        self._check_group(committed.error_code, group)
        offsets: dict[tuple[str, int], int] = {}
        for topic in committed.topics:
            for partition in topic.partitions:
                self._check_group(partition.error_code, group)
                if partition.committed_offset != _NOTHING:
                    offsets[topic.name, partition.partition_index] = partition.committed_offset
        return offsets

    # -- inspecting --------------------------------------------------------------------------------------------

    async def list_groups(self) -> list[str]:
        """Ask every broker: each lists the groups that it coordinates."""
        groups: set[str] = set()
        for broker in await self.all_brokers():
            answer: g.ListGroupsResponse = await self.ask_checked(g.ListGroupsRequest(), broker)
            groups.update(group.group_id for group in answer.groups)
        return sorted(groups)

    async def describe_group(self, group: str) -> GroupInfo:
        """Describe a group with the request of its kind: first `consumer`, then `classic`."""
        try:
            answer = await self.ask_coordinator(group, m.ConsumerGroupDescribeRequest([group]))
        except UnsupportedError:  # an old server has classic groups only
            return await self._describe_classic(group)
        described: m.ConsumerGroupDescribeResponseGroup = only(answer.groups, "ConsumerGroupDescribe")
        if described.error_code == E.GROUP_ID_NOT_FOUND:
            return await self._describe_classic(group)
        self._check_group(described.error_code, group, words=described.error_message)
        members = [
            _member(member, {topic.topic_name: topic.partitions for topic in member.assignment.topic_partitions})
            for member in described.members
        ]
        return _info(group, described.group_state, described.group_epoch, members, "consumer")

    async def _describe_classic(self, group: str) -> GroupInfo:
        answer: g.DescribeGroupsResponse = await self.ask_coordinator(group, g.DescribeGroupsRequest([group]))
        described = only(answer.groups, "DescribeGroups")
        self._check_group(described.error_code, group, words=described.error_message)
        members = [_member(member, _partitions(member.member_assignment)) for member in described.members]
        return _info(group, described.group_state, _NO_GENERATION, members, "classic")

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
        for topic_result in answer.topics:
            for each in topic_result.partitions:
                where = f"{topic_result.name}/{each.partition_index} of group {group!r}"
                self._check_group(each.error_code, group, words=_NOT_DELETED.get(each.error_code), about=where)

    # -- errors ------------------------------------------------------------------------------------------------

    def _check_group(self, code: int, group: str, member: str = "", words: str | None = None, about: str = "") -> None:
        if code:
            if rule_of(code).forget is Forget.MEMBER:
                self._forget(group, member)
            raise self.refuse(code, words, about=about, group=group)

    def _forget(self, group: str, member: str) -> None:
        for who in [who for who, known in self._ids.items() if who[0] == group and known == member]:
            del self._ids[who]


def _member(
    described: g.DescribeGroupsResponseMember | m.ConsumerGroupDescribeResponseMember, shares: dict[str, list[int]]
) -> GroupMember:
    by_topic = {topic: tuple(numbers) for topic, numbers in sorted(shares.items())}
    every = tuple(number for numbers in by_topic.values() for number in numbers)
    return GroupMember(described.member_id, every, described.client_id, described.client_host, by_topic)


def _info(group: str, state: str, generation: int, members: Sequence[GroupMember], kind: str) -> GroupInfo:
    topics = sorted({topic for member in members for topic in member.shares})
    shown = tuple(sorted(members, key=lambda each: each.member))
    return GroupInfo(group, state, generation, tuple(topics), shown, kind)


def ranges(wishes: Mapping[str, Iterable[str]], counts: Mapping[str, int]) -> dict[str, dict[str, list[int]]]:
    """Assign each member neighbouring partitions of each topic it reads; with a remainder, the first members get one
    more.

    Members are ordered by id, as in every client's range assignor.
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
    """Return the topics in a member's subscription; unreadable metadata counts as no topics."""
    try:
        return read_subscription(metadata).topics
    except ProtocolError:
        return []


def _partitions(data: bytes) -> dict[str, list[int]]:
    try:
        return {
            assigned_partition.topic: assigned_partition.partitions
            for assigned_partition in read_assignment(data).assigned_partitions
        }
    except ProtocolError as error:
        raise RefusedError(Refusal.FAILED, "kafka", "", f"the group's assignment cannot be read: {error}") from error
