"""Topics and groups: make, remove, look.

Knows: what a retry of a change may be told. Refuses to know: dialects.
Invariant: a change whose answer was lost is asked for again, and "it is there" (or "it is gone") is then no error: that is what
was wanted.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from braidlog.client.drivers.cluster import ClusterEvent, ClusterInfo, LogFolder, PartitionMove, PartitionOutcome, Place
from braidlog.client.drivers.contract import AccessRule, Commits, Driver, GroupInfo, Setting, Span
from braidlog.client.drivers.quotas import Quota
from braidlog.client.drivers.transactions import ListedTransaction, PartitionProducer, TransactionInfo
from braidlog.client.drivers.users import ITERATIONS_MIN, MECHANISMS, UserCredential
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.errors import NoAnswerError, Refusal, RefusedError, UnsupportedError
from braidlog.model.reporting.node_report import NodeDescription, lag_of

T = TypeVar("T")


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic and the offsets of each of its partitions."""

    topic: str
    partitions: tuple[Span, ...]


class PartitionLag(msgspec.Struct, frozen=True):
    """How far a group is behind in one partition. `committed` is None before the first commit."""

    topic: str
    partition: int
    committed: int | None
    latest: int
    lag: int


class Admin:
    """`client.admin`."""

    def __init__(self, driver: Driver, policy: Policy) -> None:
        self._driver = driver
        self._policy = policy

    def __repr__(self) -> str:
        return f"<Admin {self._driver!r}>"

    async def create_topic(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """`RefusedError(TOPIC_EXISTS)` if it is there; see `ensure_topic`. Settings have the dialect's names."""
        if settings:
            wanted = dict(settings)
            await self._change(lambda: self._driver.create_topic_with(topic, partitions, wanted), Refusal.TOPIC_EXISTS)
        else:
            await self._change(lambda: self._driver.create_topic(topic, partitions), Refusal.TOPIC_EXISTS)

    async def ensure_topic(self, topic: str, partitions: int = 1) -> bool:
        """Create it unless it is there; whether it was created. What is there is left as it is."""
        try:
            await self.create_topic(topic, partitions)
        except RefusedError as error:
            if error.reason is not Refusal.TOPIC_EXISTS:
                raise
            return False
        return True

    async def delete_topic(self, topic: str) -> None:
        await self._change(lambda: self._driver.delete_topic(topic), Refusal.TOPIC_NOT_FOUND)

    async def list_topics(self) -> list[str]:
        return await self._ask(self._driver.list_topics)

    async def partition_count(self, topic: str) -> int:
        return await self._ask(lambda: self._driver.partition_count(topic))

    async def span(self, topic: str, partition: int) -> Span:
        return await self._ask(lambda: self._driver.span(topic, partition))

    async def describe_topic(self, topic: str) -> TopicInfo:
        return (await self.describe_topics([topic]))[0]

    async def describe_topics(self, topics: Sequence[str]) -> list[TopicInfo]:
        """As `describe_topic` for each, with few requests where the dialect can ask for many topics at once."""
        spans = await self._ask(lambda: self._driver.spans(topics))
        return [TopicInfo(topic, spans[topic]) for topic in topics]

    async def topic_settings(self, topic: str) -> list[Setting]:
        return await self._ask(lambda: self._driver.settings_of(topic))

    async def alter_topic(
        self, topic: str, settings: Mapping[str, str | None] | None = None, *, partitions: int | None = None
    ) -> None:
        """Change settings, all of them or none (None is back to the default); then add partitions until there are so many."""
        self._driver.require("settings")
        if settings:
            changes = dict(settings)
            await self._ask(lambda: self._driver.change_settings(topic, changes))
        if partitions is not None and partitions != await self.partition_count(topic):
            # Asked for again after an answer was lost, it is refused because they are there: that is what was wanted.
            await self._change(lambda: self._driver.add_partitions(topic, partitions), Refusal.INVALID)

    async def trim(self, topic: str, partition: int, before: int) -> int:
        """Delete the records before an offset; which is the earliest then."""
        return await self._ask(lambda: self._driver.trim(topic, partition, before))

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Of the first record at or after a time; None if there is none."""
        return await self._ask(lambda: self._driver.offset_at(topic, partition, timestamp_ms))

    async def list_groups(self) -> list[str]:
        return await self._ask(self._driver.list_groups)

    async def describe_group(self, group: str) -> GroupInfo:
        return await self._ask(lambda: self._driver.describe_group(group))

    async def delete_group(self, group: str) -> None:
        """With all that it has committed. Refused while it has members."""
        await self._change(lambda: self._driver.delete_group(group), Refusal.REJOIN)

    async def delete_offsets(self, group: str, places: Sequence[Place]) -> None:
        """What a group has committed of these partitions. Refused while members read them."""
        await self._ask(lambda: self._driver.delete_offsets(group, places))

    async def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """All that a group has committed, by topic and partition."""
        return await self._ask(lambda: self._driver.group_offsets(group))

    async def list_rules(self) -> list[AccessRule]:
        """Those of the server's settings too."""
        return await self._ask(self._driver.list_rules)

    async def add_rule(self, rule: AccessRule) -> None:
        """It holds at once. One that is there already is no error."""
        await self._ask(lambda: self._driver.add_rule(rule))

    async def delete_rule(self, rule: AccessRule) -> bool:
        """Whether it was there. A rule of the server's settings is not: it is changed there."""
        return await self._ask(lambda: self._driver.delete_rule(rule)) > 0

    async def list_users(self, user: str | None = None) -> list[UserCredential]:
        """How each user can prove who it is; of one user, none if it is not there. Those of the server's settings too."""
        return await self._ask(lambda: self._driver.list_users(user))

    async def set_password(
        self, user: str, password: str, mechanisms: Sequence[str] = MECHANISMS, iterations: int = ITERATIONS_MIN
    ) -> None:
        """Make a user, or give it another password. It holds at once; the server is not told the password."""
        self._driver.require("users")
        await self._ask(lambda: self._driver.set_password(user, password, mechanisms, iterations))

    async def delete_user(self, user: str) -> None:
        """What it may do stays in the rules."""
        await self._change(lambda: self._driver.delete_user(user), Refusal.INVALID)

    async def list_quotas(self) -> list[Quota]:
        """Those of the server's settings too."""
        return await self._ask(self._driver.list_quotas)

    async def set_quota(self, quota: Quota) -> None:
        """Its rates hold at once, and go before the server's settings; those that are None stay as they are."""
        await self._ask(lambda: self._driver.set_quota(quota))

    async def remove_quota(
        self, user: str | None = None, client_id: str | None = None, address: str | None = None
    ) -> None:
        """Every rate that was set; those of the server's settings hold again."""
        await self._ask(lambda: self._driver.remove_quota(Quota(user, client_id, address)))

    async def list_transactions(self, *, open_only: bool = False) -> list[ListedTransaction]:
        """The last transaction of each transactional id."""
        return await self._ask(lambda: self._driver.list_transactions(open_only=open_only))

    async def describe_transaction(self, transactional_id: str) -> TransactionInfo:
        return await self._ask(lambda: self._driver.describe_transaction(transactional_id))

    async def list_producers(self, topic: str) -> list[PartitionProducer]:
        """Producers of which the partitions of a topic remember the last sequence, those in transactions among them."""
        return await self._ask(lambda: self._driver.list_producers(topic))

    async def abort_transaction(self, info: TransactionInfo) -> None:
        """The one that was described; its producer is fenced. `RefusedError(FENCED)` if the producer has gone on since."""
        await self._ask(lambda: self._driver.abort_transaction(info))

    async def describe_cluster(self) -> ClusterInfo:
        """The nodes, and who holds which partition."""
        return await self._ask(self._driver.describe_cluster)

    async def elect_preferred(self, places: Sequence[Place] | None = None) -> list[PartitionOutcome]:
        """Let the first replica of each partition lead. None: of all, and told are those that something has become of."""
        return await self._ask(lambda: self._driver.elect_preferred(places))

    async def move_partitions(self, targets: Mapping[Place, Sequence[int] | None]) -> list[PartitionOutcome]:
        """Begin to move partitions to these nodes, each the preferred leader first; None gives a move up."""
        return await self._ask(lambda: self._driver.move_partitions(targets))

    async def list_moves(self) -> list[PartitionMove]:
        """The partitions that are on their way to other nodes."""
        return await self._ask(self._driver.list_moves)

    async def remove_node(self, node: int) -> None:
        """A node that is gone for good; refused while it lives or holds replicas."""
        await self._ask(lambda: self._driver.remove_node(node))

    async def cluster_events(self, after: tuple[int, int] = (0, -1), since_ms: int = 0) -> list[ClusterEvent]:
        """What happened after the event with this `seq` and `index`, oldest first; empty when nothing did.

        Of many some: ask again from the last one on.
        """
        return await self._ask(lambda: self._driver.cluster_events(after, since_ms))

    async def drain_node(self, node: int, *, is_draining: bool = True) -> None:
        """A node is to lead nothing any more, until it may again (`is_draining=False`) or starts anew. It goes on following."""
        await self._ask(lambda: self._driver.drain_node(node, is_draining=is_draining))

    async def log_folders(self, node: int) -> list[LogFolder]:
        """Where a node keeps partitions, and how many bytes of each topic."""
        return await self._ask(lambda: self._driver.log_folders(node))

    async def describe_node(self, node: int, *, in_full: bool = False) -> NodeDescription:
        """What a node says of itself; in full with its settings, without secrets, and where its threads and tasks are."""
        return await self._ask(lambda: self._driver.describe_node(node, in_full=in_full))

    async def create_snapshot(self) -> str:
        """Keep the node's data folder as it is now, for a back-up; the folder that lists it, on the node's own machine."""
        return await self._ask(self._driver.create_snapshot)

    async def drop_snapshot(self) -> None:
        """The last cut was copied: what it kept may go."""
        await self._ask(self._driver.drop_snapshot)

    async def reset_group(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit for a group from outside, so that it goes on there. A server that knows members refuses while there are any."""
        if self._driver.capabilities.commits is Commits.MEMBERS:
            raise UnsupportedError(
                f"{self._driver.name} accepts commits of group members only; a group cannot be reset from outside"
            )
        wanted = dict(offsets)
        await self._ask(lambda: self._driver.commit(group, topic, wanted, None))

    async def lag(self, group: str, topic: str) -> list[PartitionLag]:
        """How far a group is behind in each partition of a topic."""
        info = await self.describe_topic(topic)
        # All at once where that can be asked for: it does not wait for a transaction that is open.
        known = await self.group_offsets(group) if self._driver.capabilities.group_offsets else None
        return [await self._lag(group, topic, number, span, known) for number, span in enumerate(info.partitions)]

    async def _lag(
        self, group: str, topic: str, partition: int, span: Span, known: Mapping[Place, int] | None
    ) -> PartitionLag:
        if known is not None:
            committed = known.get((topic, partition))
        else:
            committed = await self._ask(lambda: self._driver.committed(group, topic, partition))
        return PartitionLag(topic, partition, committed, span.latest, lag_of(committed, span.earliest, span.latest))

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(self._policy, call)

    async def _change(self, call: Callable[[], Awaitable[None]], already: Refusal) -> None:
        may_be_done = False

        async def attempt() -> None:
            nonlocal may_be_done
            try:
                await call()
            except NoAnswerError:
                may_be_done = True
                raise
            except RefusedError as error:
                if not may_be_done or error.reason is not already:
                    raise

        await retry(self._policy, attempt)
