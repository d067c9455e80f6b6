"""What brokers tell of themselves: nodes, and who holds which partition.

Knows: which answers say it. Refuses to know: whether that is as it should be.
"""

from braidlog.client.drivers.contract import ClusterInfo, ClusterNode, ClusterPartition
from braidlog.client.drivers.kafka.routing import Router
from braidlog.wire.kafka.messages import cluster as c


class ClusterDriver(Router):
    """What a driver asks brokers."""

    async def describe_cluster(self) -> ClusterInfo:
        told: c.DescribeClusterResponse = await self.ask(c.DescribeClusterRequest(include_fenced_brokers=True))
        self.check_code(told.error_code, told.error_message)
        answer = await self.metadata(None)
        nodes = [
            ClusterNode(each.broker_id, each.host, each.port, each.rack or "", not each.is_fenced)
            for each in told.brokers
        ]
        partitions = [
            ClusterPartition(
                topic.name or "",
                each.partition_index,
                None if each.leader_id < 0 else each.leader_id,
                each.leader_epoch,
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
                tuple(each.offline_replicas),
            )
            for topic in answer.topics
            for each in topic.partitions
        ]
        return ClusterInfo(
            told.cluster_id,
            told.controller_id,
            tuple(sorted(nodes, key=lambda each: each.node)),
            tuple(sorted(partitions, key=lambda each: (each.topic, each.partition))),
        )
