"""Whether an event is valid for an image: one check per event.

Invariant: a check is a pure function of image and event. It raises `BrokerError` for an invalid event.
"""

from braidlog.cluster import membership
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.image_state import ImageState
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.replication import assignment as sets
from braidlog.replication.assignment import Nodes

BROKERS_MAX = 1_000
"""Maximum number of registered brokers; they stay in the image permanently."""
FOLLOWERS_PER_TOPIC_MAX = 32
RULES_MAX = 10_000
QUOTAS_MAX = 10_000
USERS_MAX = 100_000
GROUPS_MAX = 10_000


def check_create_topic(image: ImageState, event: e.CreateTopic) -> None:
    if event.topic in image.topics:
        raise BrokerError(Reason.TOPIC_EXISTS, f"topic {event.topic!r} exists")
    assert event.topic_id not in image.deleted
    _check_partitions(event.partitions)
    _check_min_in_sync(event.min_in_sync)
    _check_replicas(event.replicas)
    _check_placement(image, event.placement, event.partitions)


def _check_placement(image: ImageState, placement: tuple[Nodes, ...], count: int) -> None:
    """Check the placement of each new partition. An empty placement means a single node."""
    nodes = image.cluster.nodes()
    if placement and len(placement) != count:
        raise BrokerError(Reason.INVALID_SETTING, f"{count} partitions cannot be placed in {len(placement)} places")
    for replicas in placement:
        if not replicas or len(set(replicas)) != len(replicas) or any(node not in nodes for node in replicas):
            raise BrokerError(
                Reason.INVALID_SETTING,
                f"replicas {list(replicas)} must be distinct nodes of this cluster ({sorted(nodes)})",
            )
        if all(nodes[node].is_fenced for node in replicas):
            raise BrokerError(Reason.NOT_ENOUGH_REPLICAS, f"all of the nodes {list(replicas)} are fenced")


def check_topic(image: ImageState, event: e.DeleteTopic | e.AlterTopic | e.FolderMade) -> None:
    image.topic(event.topic, event.topic_id)


def check_add_partitions(image: ImageState, event: e.AddPartitions) -> None:
    topic = image.topic(event.topic, event.topic_id)
    _check_partitions(event.partitions)
    if event.partitions <= topic.partitions:
        raise BrokerError(
            Reason.INVALID_PARTITION_COUNT,
            f"topic {event.topic!r} has {topic.partitions} partitions; the partition count can only be increased",
        )
    assert bool(event.placement) is not bool(topic.holder), "a cluster places every partition"
    _check_placement(image, event.placement, event.partitions - topic.partitions)


def check_place_topic(image: ImageState, event: e.PlaceTopic) -> None:
    image.topic(event.topic, event.topic_id)
    _check_min_in_sync(event.min_in_sync)
    _check_replicas(event.replicas)


def check_change_leader(image: ImageState, event: e.ChangeLeader) -> None:
    known = image.assignment(event.topic, event.partition)
    leader = image.number_of(event.topic, event.leader_id)
    if event.leader_epoch < known.leader_epoch + (leader not in (None, known.leader)):
        raise membership.stale(
            f"{event.topic}/{event.partition} is in leader epoch {known.leader_epoch}, not before {event.leader_epoch}"
        )
    if event.leader_id and leader not in known.replicas:
        raise _no_replica(event.leader_id)


def _check_epochs(image: ImageState, event: e.PartitionEvent, leader_epoch: int, partition_epoch: int) -> None:
    known = image.assignment(event.topic, event.partition)
    if (leader_epoch, partition_epoch) != (known.leader_epoch, known.partition_epoch):
        raise membership.stale(f"{event.topic}/{event.partition} changed concurrently: retry with its new state")


def check_add_node(image: ImageState, event: e.AddNode) -> None:
    known = image.nodes.get(event.node_id)
    if known is not None and event.epoch < known.epoch:
        raise BrokerError(
            Reason.STALE_LEADER_EPOCH,
            f"broker {event.node_id} is registered with epoch {known.epoch}, not {event.epoch}",
        )
    if known is None and len(image.nodes) >= BROKERS_MAX:
        raise BrokerError(Reason.QUOTA_EXCEEDED, f"limit of {BROKERS_MAX} registered brokers reached")


def check_remove_node(image: ImageState, event: e.RemoveNode) -> None:
    member = image.cluster.members.get(event.node_id)
    if event.node_id not in image.nodes and member is None:
        raise BrokerError(Reason.REPLICA_NOT_FOUND, f"broker {event.node_id} is not registered")
    if member is not None:
        _check_removal(image, int(event.node_id), member)


def _check_removal(image: ImageState, node: int, member: membership.Member) -> None:
    if not member.is_fenced:
        raise BrokerError(Reason.VERSION_CONFLICT, f"node {node} is running; stop it first")
    topics = image.topics.values()
    held = sum(node in each.replicas for topic in topics for each in topic.assignments)
    if held:
        raise BrokerError(
            Reason.VERSION_CONFLICT,
            f"node {node} has replicas of {held} partition{'s' * (held > 1)}; move them to other nodes first",
        )


def check_id_block(image: ImageState, event: e.IdBlock) -> None:
    assert event.taken > image.ids_taken, "a block of ids is given once"


def check_set_user(image: ImageState, event: e.SetUser) -> None:
    if event.user not in image.users and len(image.users) >= USERS_MAX:
        raise BrokerError(Reason.QUOTA_EXCEEDED, f"limit of {USERS_MAX} users reached")


def check_drop_user(image: ImageState, event: e.DropUser) -> None:
    if event.user not in image.users:
        raise BrokerError(Reason.USER_NOT_FOUND, f"user {event.user[:60]!r} does not exist")


def check_add_rule(image: ImageState, _: e.AddRule) -> None:
    if len(image.rules) >= RULES_MAX:
        raise BrokerError(Reason.QUOTA_EXCEEDED, f"limit of {RULES_MAX} access rules reached")


def check_drop_rule(image: ImageState, _: e.DropRule) -> None:
    """Always valid: dropping a missing rule has no effect."""


def check_register_node(image: ImageState, event: e.RegisterNode) -> None:
    membership.check_registration(image.cluster, event)


def check_incarnation(image: ImageState, event: e.FenceNode | e.DrainNode) -> None:
    membership.check_incarnation(image.cluster, event)


def check_assign_partition(image: ImageState, event: e.AssignPartition) -> None:
    _check_epochs(image, event, event.leader_epoch, event.partition_epoch)


def check_change_set(image: ImageState, event: e.ChangeSet) -> None:
    known = image.assignment(event.topic, event.partition)
    if not sets.may_change(known, event.change, image.cluster.nodes()):
        raise membership.stale(f"{event.topic}/{event.partition} changed concurrently: retry with its new state")


def check_resign_replica(image: ImageState, event: e.ResignReplica) -> None:
    if image.assignment(event.topic, event.partition).leader_epoch != event.leader_epoch:
        raise membership.stale(f"{event.topic}/{event.partition} has another leader")


def check_set_quota(image: ImageState, event: e.SetQuota) -> None:
    if (event.principal is None) is (event.entity is None):
        raise BrokerError(Reason.INVALID_SETTING, "a quota needs either a principal or an entity")
    rates, key = image.rates_of(event)
    if event.rates and key not in rates and len(image.quotas) + len(image.entity_quotas) >= QUOTAS_MAX:
        raise BrokerError(Reason.QUOTA_EXCEEDED, f"limit of {QUOTAS_MAX} quotas reached (users, client ids, addresses)")


def check_set_group(image: ImageState, event: e.SetGroup) -> None:
    if event.settings and event.group not in image.group_settings and len(image.group_settings) >= GROUPS_MAX:
        raise BrokerError(Reason.QUOTA_EXCEEDED, f"limit of {GROUPS_MAX} groups with settings reached")


def _no_replica(node: str) -> BrokerError:
    return BrokerError(Reason.REPLICA_NOT_FOUND, f"node {node[:60]!r} holds no replica of this partition")


def _check_partitions(count: int) -> None:
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise BrokerError(
            Reason.INVALID_PARTITION_COUNT, f"a topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}"
        )


def _check_replicas(replicas: tuple[str, ...]) -> None:
    """Check for duplicates. Front ends limit the number of followers (`broker/topic_placement.py`, Flux's own limit)."""
    assert replicas
    assert len(set(replicas)) == len(replicas)


def _check_min_in_sync(count: int) -> None:
    if not 1 <= count <= FOLLOWERS_PER_TOPIC_MAX + 1:
        raise BrokerError(
            Reason.INVALID_SETTING, f"min_in_sync must be 1 to {FOLLOWERS_PER_TOPIC_MAX + 1}, not {count}"
        )
