"""Administers topics, groups, access rules, users, quotas, transactions and nodes.

A change is retried if its answer was lost. "Exists" (or "does not exist") is then success: the first attempt took
effect.
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
    """The lag of a group in one partition. `committed` is None before the first commit."""

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
        """Create a topic; `RefusedError(TOPIC_EXISTS)` if it exists, see `ensure_topic`. Settings have the dialect's
        names."""
        if settings:
            changes = dict(settings)
            await self._change(lambda: self._driver.create_topic_with(topic, partitions, changes), Refusal.TOPIC_EXISTS)
        else:
            await self._change(lambda: self._driver.create_topic(topic, partitions), Refusal.TOPIC_EXISTS)

    async def ensure_topic(self, topic: str, partitions: int = 1) -> bool:
        """Create a topic unless it exists; return whether it was created. An existing topic is not changed."""
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
        """Describe each topic, with few requests if the dialect can ask for many topics together."""
        spans = await self._ask(lambda: self._driver.spans(topics))
        return [TopicInfo(topic, spans[topic]) for topic in topics]

    async def topic_settings(self, topic: str) -> list[Setting]:
        return await self._ask(lambda: self._driver.settings_of(topic))

    async def alter_topic(
        self, topic: str, settings: Mapping[str, str | None] | None = None, *, partitions: int | None = None
    ) -> None:
        """Change settings, all of them or none (None resets to the default); then add partitions up to this count."""
        self._driver.require("settings")
        if settings:
            changes = dict(settings)
            await self._ask(lambda: self._driver.change_settings(topic, changes))
        if partitions is not None and partitions != await self.partition_count(topic):
            # A retry after a lost answer is refused because the partitions exist: the first attempt took effect.
            await self._change(lambda: self._driver.add_partitions(topic, partitions), Refusal.INVALID)

    async def trim(self, topic: str, partition: int, before: int) -> int:
        """Delete the records before an offset; return the new earliest offset."""
        return await self._ask(lambda: self._driver.trim(topic, partition, before))

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time, or None."""
        return await self._ask(lambda: self._driver.offset_at(topic, partition, timestamp_ms))

    async def list_groups(self) -> list[str]:
        return await self._ask(self._driver.list_groups)

    async def describe_group(self, group: str) -> GroupInfo:
        return await self._ask(lambda: self._driver.describe_group(group))

    async def delete_group(self, group: str) -> None:
        """Delete a group and all its commits. Refused while it has members."""
        await self._change(lambda: self._driver.delete_group(group), Refusal.REJOIN)

    async def delete_offsets(self, group: str, places: Sequence[Place]) -> None:
        """Delete a group's committed offsets of these partitions. Refused while members read them."""
        await self._ask(lambda: self._driver.delete_offsets(group, places))

    async def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return all commits of a group, by topic and partition."""
        return await self._ask(lambda: self._driver.group_offsets(group))

    async def list_rules(self) -> list[AccessRule]:
        """Return all rules, including those from the server's settings."""
        return await self._ask(self._driver.list_rules)

    async def add_rule(self, rule: AccessRule) -> None:
        """Add a rule, effective immediately. Adding an existing rule is not an error."""
        await self._ask(lambda: self._driver.add_rule(rule))

    async def delete_rule(self, rule: AccessRule) -> bool:
        """Delete a rule; return whether it existed. Rules in the server's settings are not deleted: change them
        there."""
        return await self._ask(lambda: self._driver.delete_rule(rule)) > 0

    async def list_users(self, user: str | None = None) -> list[UserCredential]:
        """Return the credentials of all users, including those from the server's settings; of one user, possibly
        none."""
        return await self._ask(lambda: self._driver.list_users(user))

    async def set_password(
        self, user: str, password: str, mechanisms: Sequence[str] = MECHANISMS, iterations: int = ITERATIONS_MIN
    ) -> None:
        """Create a user, or change its password, effective immediately; the password is not sent to the server."""
        self._driver.require("users")
        await self._ask(lambda: self._driver.set_password(user, password, mechanisms, iterations))

    async def delete_user(self, user: str) -> None:
        """Delete a user; rules that name it stay."""
        await self._change(lambda: self._driver.delete_user(user), Refusal.INVALID)

    async def list_quotas(self) -> list[Quota]:
        """Return all quotas, including those from the server's settings."""
        return await self._ask(self._driver.list_quotas)

    async def set_quota(self, quota: Quota) -> None:
        """Set rates, effective immediately; they override the server's settings. Rates of None keep their value."""
        await self._ask(lambda: self._driver.set_quota(quota))

    async def remove_quota(
        self, user: str | None = None, client_id: str | None = None, address: str | None = None
    ) -> None:
        """Remove every rate of this entity; the server's settings apply again."""
        await self._ask(lambda: self._driver.remove_quota(Quota(user, client_id, address)))

    async def list_transactions(self, *, open_only: bool = False) -> list[ListedTransaction]:
        """Return the last transaction of each transactional id."""
        return await self._ask(lambda: self._driver.list_transactions(open_only=open_only))

    async def describe_transaction(self, transactional_id: str) -> TransactionInfo:
        return await self._ask(lambda: self._driver.describe_transaction(transactional_id))

    async def list_producers(self, topic: str) -> list[PartitionProducer]:
        """Return the producers whose last sequence the topic's partitions remember, including transactional ones."""
        return await self._ask(lambda: self._driver.list_producers(topic))

    async def abort_transaction(self, info: TransactionInfo) -> None:
        """Abort this transaction and fence its producer. `RefusedError(FENCED)` if the producer has begun another one
        since."""
        await self._ask(lambda: self._driver.abort_transaction(info))

    async def describe_cluster(self) -> ClusterInfo:
        """Return the nodes and the replicas of each partition."""
        return await self._ask(self._driver.describe_cluster)

    async def elect_preferred(self, places: Sequence[Place] | None = None) -> list[PartitionOutcome]:
        """Elect the first replica of each partition as leader. None: of all; the result then lists only partitions
        with a result."""
        return await self._ask(lambda: self._driver.elect_preferred(places))

    async def move_partitions(self, targets: Mapping[Place, Sequence[int] | None]) -> list[PartitionOutcome]:
        """Start to reassign partitions to these nodes, the preferred leader first; None cancels a move."""
        return await self._ask(lambda: self._driver.move_partitions(targets))

    async def list_moves(self) -> list[PartitionMove]:
        """Return the partitions that are being moved."""
        return await self._ask(self._driver.list_moves)

    async def remove_node(self, node: int) -> None:
        """Remove a node that is lost for good; refused while it is alive or holds replicas."""
        await self._ask(lambda: self._driver.remove_node(node))

    async def cluster_events(self, after: tuple[int, int] = (0, -1), since_ms: int = 0) -> list[ClusterEvent]:
        """Return events after the one with this `seq` and `index`, oldest first; empty if there are none.

        One call may return only a part: continue from the last event.
        """
        return await self._ask(lambda: self._driver.cluster_events(after, since_ms))

    async def drain_node(self, node: int, *, is_draining: bool = True) -> None:
        """Make a node give up leadership until `is_draining=False` or a restart. It keeps following."""
        await self._ask(lambda: self._driver.drain_node(node, is_draining=is_draining))

    async def log_folders(self, node: int) -> list[LogFolder]:
        """Return the folders in which a node keeps partitions, with the bytes of each topic."""
        return await self._ask(lambda: self._driver.log_folders(node))

    async def describe_node(self, node: int, *, in_full: bool = False) -> NodeDescription:
        """Return a node's description of itself; `in_full` adds its settings, without secrets, and where its threads
        and tasks are."""
        return await self._ask(lambda: self._driver.describe_node(node, in_full=in_full))

    async def create_snapshot(self) -> str:
        """Create a snapshot of the node's data folder for a backup; return the folder on the node's machine that
        lists its files."""
        return await self._ask(self._driver.create_snapshot)

    async def drop_snapshot(self) -> None:
        """Release the last snapshot after it was copied; its files may be deleted."""
        await self._ask(self._driver.drop_snapshot)

    async def reset_group(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets for a group from outside, to move it. Servers that track members refuse while there are
        any."""
        if self._driver.capabilities.commits is Commits.MEMBERS:
            raise UnsupportedError(
                f"{self._driver.name} accepts commits of group members only; a group cannot be reset from outside"
            )
        positions = dict(offsets)
        await self._ask(lambda: self._driver.commit(group, topic, positions, None))

    async def lag(self, group: str, topic: str) -> list[PartitionLag]:
        """Return the lag of a group in each partition of a topic."""
        info = await self.describe_topic(topic)
        # List all commits in one request if the dialect supports it: that does not wait for an open transaction.
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
