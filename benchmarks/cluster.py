"""Three nodes of a cluster on this machine: `make bench-cluster`, with `BENCH` naming parts of it.

Knows: which parts there are. What each measures, and by what, stands in its own file:

| part | what | in |
|---|---|---|
| kill, stop, etcd | fail-over: of a node killed, stopped, killed together with etcd's leader | failover.py |
| many | fail-over of a thousand partitions | failover_many.py |
| rest | memory and processor time of nodes that do nothing | here |
"""

import argparse
import threading

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster_nodes import Cluster, cluster, processor_seconds
from benchmarks.failover import FAULTS, QUIET, SECONDS_MAX, failovers
from benchmarks.failover_many import many
from benchmarks.measure import spread


def at_rest(nodes: Cluster, partitions: int, seconds: float) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": nodes.addresses})
    for made in admin.create_topics([NewTopic("rest", partitions, 3)]).values():
        made.result(SECONDS_MAX)
    nothing = threading.Event()
    nothing.wait(seconds)  # what the creation left to do is done meanwhile
    before = {number: processor_seconds(node.pid) for number, node in nodes.nodes.items()}
    nothing.wait(seconds)
    shares = [(processor_seconds(node.pid) - before[number]) / seconds for number, node in nodes.nodes.items()]
    resident = [each / 1e6 for each in nodes.resident_bytes()]
    print(f"at rest with {partitions} partitions of three replicas: {spread(resident):.0f} MB a node (target 80),")
    print(f"  {spread([100 * share for share in shares]):.1f} % of a core a node")


PARTS = (*FAULTS, "many", "rest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all without any")
    parser.add_argument("--count", type=int, default=20, help="fail-overs of each kind")
    parser.add_argument("--many", type=int, default=1000, help="partitions that a killed node led")
    parser.add_argument("--many-count", type=int, default=3, help="how often it is killed")
    parser.add_argument("--partitions", type=int, default=100, help="of nodes at rest")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to look at nodes at rest")
    asked = parser.parse_args()
    for part in asked.parts or PARTS:
        if part == "many":
            many(asked.many, asked.many_count)
            continue
        with cluster() as nodes:
            if part == "rest":
                at_rest(nodes, asked.partitions, asked.seconds)
            else:
                failovers(nodes, FAULTS[part], asked.count)


if __name__ == "__main__":
    main()
