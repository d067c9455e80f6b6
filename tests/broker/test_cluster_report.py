"""What a node tells of its cluster: partitions below strength one by one, slots of keys as a count."""

from tests.broker.three_nodes import TOPIC, assign, three_nodes
from tests.cluster.topics import placed

from braidlog.broker.cluster_report import cluster_report
from braidlog.broker.topics import Placed
from braidlog.cluster.metadata import events as e
from braidlog.kv.replicated.slots import KEY_LOGS, LOG_TOPIC
from braidlog.model.reporting import node_report as r
from braidlog.replication.assignment import Assignment


def test_slots_under_replicated_are_counted_and_other_partitions_named() -> None:
    node = three_nodes(2)
    services = node.services
    assign(node, 2)
    settings = services.metadata.image.topics[TOPIC].settings
    created = placed(*((1, 2, 3),) * KEY_LOGS, topic=LOG_TOPIC, topic_id="0" * 31 + "9", settings=settings)
    services.metadata.change_exclusively([created])
    alone = Assignment(replicas=(1, 2, 3), in_sync=(1,), leader=1, leader_epoch=2)
    known = services.metadata.image.topics[LOG_TOPIC].assignments[7]
    epochs = {"leader_epoch": known.leader_epoch, "partition_epoch": known.partition_epoch}
    services.metadata.change_exclusively([e.AssignPartition(topic=LOG_TOPIC, partition=7, after=alone, **epochs)])
    told = node.run(
        cluster_report(services.metadata, services.routing, services.hosting, services.forwarding, r.EtcdReport())
    )
    assert [(row.topic, row.partition) for row in told.weak] == [(TOPIC, 0)]
    assert told.weak_left_out == 1


def test_partitions_below_the_replication_factor_are_counted_where_they_are_led() -> None:
    node = three_nodes(2)
    services = node.services
    services.metadata.change_exclusively([e.DrainNode(node=3, incarnation=1, is_draining=True)])
    made = node.run(services.topics.create("few", 4, placed=Placed(3)))
    told = node.run(
        cluster_report(services.metadata, services.routing, services.hosting, services.forwarding, r.EtcdReport())
    )
    assert told.below_replication_factor == sum(each.leader == 2 for each in made.assignments) == 2


def test_partitions_without_a_leader_are_named_first() -> None:
    """No node reports them, so a console knows them from here only."""
    node = three_nodes(2, partitions=r.WEAK_MAX + 2)
    services = node.services
    assign(node, None, r.WEAK_MAX + 1)
    told = node.run(
        cluster_report(services.metadata, services.routing, services.hosting, services.forwarding, r.EtcdReport())
    )
    assert (told.weak[0].partition, told.weak[0].leader) == (r.WEAK_MAX + 1, None)
    assert (len(told.weak), told.weak_left_out) == (r.WEAK_MAX, 2)
