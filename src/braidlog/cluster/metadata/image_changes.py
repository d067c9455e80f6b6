"""How each event changes an image: one `apply` function per event.

Invariant: an event that passed its check never fails here. The result is a pure function of image and event.
"""

import msgspec

from braidlog.cluster import membership
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.image_state import DELETED_KEPT_MS, ImageState, Node
from braidlog.cluster.metadata.topic_state import Change, Topic, held_alone, placed
from braidlog.replication import assignment as sets
from braidlog.replication.assignment import Assignment, Nodes
from braidlog.replication.control import election


def apply_create_topic(image: ImageState, event: e.CreateTopic) -> None:
    holder = "" if event.placement else event.replicas[0]
    image.topics[event.topic] = Topic(
        name=event.topic,
        topic_id=event.topic_id,
        settings=event.settings,
        created_ms=event.created_ms,
        min_in_sync=event.min_in_sync,
        created_by=event.created_by,
        replication_factor=event.replication_factor,
        holder=holder,
        observers=event.replicas[1:],
        assignments=_first(image, holder, event.placement, event.partitions, event.leader_epoch),
    )


def _first(
    image: ImageState, holder: str, placement: tuple[Nodes, ...], count: int, leader_epoch: int
) -> tuple[Assignment, ...]:
    if holder:
        return held_alone(holder, count, leader_epoch)
    return placed(placement, image.cluster.nodes(), leader_epoch)


def apply_delete_topic(image: ImageState, event: e.DeleteTopic) -> None:
    del image.topics[event.topic]
    image.deleted = {topic_id: at for topic_id, at in image.deleted.items() if at > event.deleted_ms - DELETED_KEPT_MS}
    image.deleted[event.topic_id] = event.deleted_ms
    image.made.pop(event.topic_id, None)


def apply_alter_topic(image: ImageState, event: e.AlterTopic) -> None:
    image.topics[event.topic] = image.topics[event.topic].altered(event.settings)


def apply_add_partitions(image: ImageState, event: e.AddPartitions) -> None:
    topic = image.topics[event.topic]
    added = _first(image, topic.holder, event.placement, event.partitions - topic.partitions, e.FIRST_LEADER_EPOCH)
    image.topics[event.topic] = msgspec.structs.replace(topic, assignments=topic.assignments + added)


def apply_place_topic(image: ImageState, event: e.PlaceTopic) -> None:
    topic = image.topics[event.topic]
    image.topics[event.topic] = topic.with_observers(event.replicas, event.min_in_sync)
    if topic.holder:
        made = image.made.get(topic.topic_id, {})
        image.made[topic.topic_id] = {node: count for node, count in made.items() if node in event.replicas}


def apply_change_leader(image: ImageState, event: e.ChangeLeader) -> None:
    leader = image.number_of(event.topic, event.leader_id)
    _change(
        image, event, lambda known: msgspec.structs.replace(known.with_leader(leader), leader_epoch=event.leader_epoch)
    )


def _change(image: ImageState, event: e.PartitionEvent, change: Change) -> None:
    image.topics[event.topic] = image.topics[event.topic].changed(event.partition, change)


def apply_add_node(image: ImageState, event: e.AddNode) -> None:
    image.nodes[event.node_id] = Node(event.addr, event.epoch)


def apply_remove_node(image: ImageState, event: e.RemoveNode) -> None:
    image.nodes.pop(event.node_id, None)
    image.cluster.members.pop(event.node_id, None)


def apply_folder_made(image: ImageState, event: e.FolderMade) -> None:
    image.made[event.topic_id] = {**image.made.get(event.topic_id, {}), event.node_id: event.partitions}


def apply_id_block(image: ImageState, event: e.IdBlock) -> None:
    image.ids_taken = event.taken


def apply_set_user(image: ImageState, event: e.SetUser) -> None:
    image.users[event.user] = event.credentials


def apply_drop_user(image: ImageState, event: e.DropUser) -> None:
    del image.users[event.user]


def apply_add_rule(image: ImageState, event: e.AddRule) -> None:
    if event not in image.rules:
        image.rules.append(event)


def apply_drop_rule(image: ImageState, event: e.DropRule) -> None:
    rule = e.AddRule(**msgspec.structs.asdict(event))
    image.rules = [each for each in image.rules if each != rule]


def apply_register_node(image: ImageState, event: e.RegisterNode) -> None:
    before = image.cluster.member(event.node)
    if before is not None and before.registered.life.folder_id != event.life.folder_id:
        # An empty folder: no in-sync set counts its replicas. They are created again and copied from their leaders.
        previous_names = {str(event.node), event.name}
        image.made = {
            topic_id: {node: count for node, count in made.items() if node not in previous_names}
            for topic_id, made in image.made.items()
        }
    membership.register(image.cluster, event)
    nodes = image.cluster.nodes()
    for name, topic in image.topics.items():
        image.topics[name] = membership.with_node_registered(topic, event, before, nodes)


def apply_fence_node(image: ImageState, event: e.FenceNode) -> None:
    membership.fence(image.cluster, event)


def apply_drain_node(image: ImageState, event: e.DrainNode) -> None:
    membership.drain(image.cluster, event)


def apply_assign_partition(image: ImageState, event: e.AssignPartition) -> None:
    image.topics[event.topic] = image.topics[event.topic].assigned(event.partition, event.after)


def apply_change_set(image: ImageState, event: e.ChangeSet) -> None:
    min_in_sync = image.topics[event.topic].min_in_sync
    _change(image, event, lambda known: sets.with_change(known, event.change, min_in_sync))


def apply_resign_replica(image: ImageState, event: e.ResignReplica) -> None:
    nodes = image.cluster.nodes()
    _change(image, event, lambda known: election.resigned(known, event.node, nodes))


def apply_set_quota(image: ImageState, event: e.SetQuota) -> None:
    rates, key = image.rates_of(event)
    if event.rates:
        rates[key] = event.rates
    else:
        rates.pop(key, None)


def apply_set_group(image: ImageState, event: e.SetGroup) -> None:
    settings = {**image.group_settings, event.group: event.settings}
    image.group_settings = {group: own for group, own in settings.items() if own}
