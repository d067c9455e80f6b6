"""Sets the followers, leaders and in-sync replicas of topics, for administrators and for other nodes.

Does not handle: copying records.
Invariant: each leadership has a new epoch, which is durable before the leadership starts.
"""

from collections.abc import Callable, Sequence

from braidlog.cluster.metadata.events import ChangeLeader, Event, PlaceTopic
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.image_checks import FOLLOWERS_PER_TOPIC_MAX
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry, refuse_internal
from braidlog.partition.reconciler import Reconciler
from braidlog.replication.messages import ExpireExternal, SetExternalInSync


class Placement:
    """Changes roles, followers and in-sync sets."""

    def __init__(
        self,
        metadata: Metadata,
        reconciler: Reconciler,
        hosting: PartitionRegistry,
        runtime: Runtime,
        stop_node: Callable[[], None] | None = None,
    ) -> None:
        """`stop_node`: stops a node of a cluster."""
        self._metadata = metadata
        self._reconciler = reconciler
        self._hosting = hosting
        self._runtime = runtime
        self._stop_node = stop_node

    def leave_cluster(self) -> None:
        """Stop this node, as SIGTERM does: other nodes take over its partitions first."""
        if self._stop_node is None:
            raise BrokerError(Reason.UNAVAILABLE, "this node is the only one: no other node can take its keys")
        self._stop_node()

    @property
    def node(self) -> str:
        """Return the name of this node."""
        return self._hosting.node

    async def set_min_in_sync(self, name: str, count: int) -> None:
        """Set how many replicas must be in sync for an append with acks=all."""
        await self._place(name, None, count)

    async def set_followers(self, name: str, followers: Sequence[str], min_in_sync: int) -> None:
        """Change which nodes follow a topic's partitions."""
        await self._place(name, followers, min_in_sync)

    async def _place(self, name: str, followers: Sequence[str] | None, min_in_sync: int) -> None:
        def decide(image: Image) -> list[Event]:
            topic = image.topic(name)
            names = topic.observers if followers is None else followers
            replicas = tuple(dict.fromkeys((self.node, *names)))
            return [PlaceTopic(topic=name, topic_id=topic.topic_id, replicas=replicas, min_in_sync=min_in_sync)]

        refuse_internal(name)
        await self._reconciler.change(name, decide)

    async def set_role(self, name: str, number: int, role: Role) -> Partition:
        """Make this node leader or follower of a partition."""

        def decide(image: Image) -> list[Event]:
            known = image.assignment(name, number)
            leads = known.leader == self._hosting.number
            if leads is (role is Role.LEADER):
                return []
            # The log may have epochs that the metadata never had: its folder may come from another node.
            epoch = max(known.leader_epoch, self._hosting.partition(name, number).leader_epoch) + (not leads)
            leader = "" if leads else self.node
            return [ChangeLeader(topic=name, partition=number, leader_id=leader, leader_epoch=epoch)]

        refuse_internal(name)
        hosted = self._hosting.partition(name, number)
        await self._reconciler.change(name, decide)
        return hosted

    async def set_in_sync(self, name: str, number: int, node: str, *, in_sync: bool) -> None:
        """Add a follower to the in-sync set or remove it. A node that did not follow the topic starts to follow it,
        and is in sync once it has caught up."""
        hosted = self._hosting.partition(name, number)
        hosted.require_leader()
        followers = [replica.node for replica in hosted.replicas.followers]
        if in_sync and node not in followers and self._metadata.image.topic(name).holder:
            self._check_follower(node, followers)
            await self.set_followers(name, sorted([*followers, node]), hosted.replicas.min_in_sync)
        else:
            hosted.step(SetExternalInSync(node, in_sync))

    def _check_follower(self, node: str, followers: list[str]) -> None:
        if not 1 <= len(node) <= NAME_CHARS_MAX or node == self.node:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"node {node[:60]!r} cannot follow")
        if len(followers) >= FOLLOWERS_PER_TOPIC_MAX:
            raise BrokerError(Reason.INVALID_SETTING, f"a topic has at most {FOLLOWERS_PER_TOPIC_MAX} followers")

    def choose_followers(self, count: int) -> list[str]:
        """Return `count` other nodes of the cluster; without a cluster, nodes that already follow some topic."""
        if count > FOLLOWERS_PER_TOPIC_MAX:
            raise BrokerError(
                Reason.INVALID_SETTING, f"a topic has at most {FOLLOWERS_PER_TOPIC_MAX} followers, not {count}"
            )
        image = self._metadata.image
        topics = image.topics.values()
        if image.cluster.members:
            known = sorted(number for number in image.cluster.members if number != str(self._hosting.number))
        else:
            known = sorted({node for topic in topics for node in topic.observers} - {self.node})
        if count > len(known):
            raise BrokerError(
                Reason.NOT_ENOUGH_REPLICAS, f"{count} followers need {count + 1} nodes, {len(known) + 1} are known"
            )
        return known[:count]

    def expire_replicas(self, lag_ms_max: int) -> list[tuple[Partition, str]]:
        """Remove followers from in-sync sets if they have not fetched for `lag_ms_max`; called periodically."""
        expired = []
        for hosted in self._hosting.opened():
            if self._hosting.topics[hosted.topic].observers:
                before = hosted.replicas.in_sync
                hosted.step(ExpireExternal(lag_ms_max))
                after = hosted.replicas.in_sync
                expired += [(hosted, node) for node in before if node not in after]
        return expired
