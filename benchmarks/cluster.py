"""Three nodes of a cluster on this machine: `make bench-cluster`, with `BENCH` naming parts of it.

Knows: which parts there are. What each measures, and by what, stands in its own file:

| part | what | in |
|---|---|---|
| kill, stop, etcd | fail-over: of a node killed, stopped, killed together with etcd's leader | failover.py |
| cut | the same of a node that nobody reaches any more, in network namespaces (root) | failover_cut.py |
| many | fail-over of a thousand partitions | failover_many.py |
| coordinator | fail-over of a group's coordinator | failover_coordinator.py |
| starved | nodes that are taken for dead while the machine is busy | starved.py |
| rest | processor time of nodes that do nothing, and their memory | here |
| memory, produce, single, copy | Apache Kafka beside it: at rest, records in, one record, an empty follower | cluster_kafka.py |

`--quick` takes less of everything.
"""

import argparse
import signal
import sys
import threading

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster_kafka import PARTS as AGAINST_KAFKA
from benchmarks.cluster_kafka import Options, compare
from benchmarks.cluster_nodes import Cluster, cluster, processor_seconds
from benchmarks.failover import FAULTS, QUIET, SECONDS_MAX, failovers
from benchmarks.failover_coordinator import coordinators
from benchmarks.failover_cut import cut
from benchmarks.failover_many import many
from benchmarks.measure import spread
from benchmarks.starved import starved


def at_rest(nodes: Cluster, partitions: int, seconds: float) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": nodes.addresses})
    for made in admin.create_topics([NewTopic("rest", partitions, 3)]).values():
        made.result(SECONDS_MAX)
    nothing = threading.Event()
    nothing.wait(seconds)  # what the creation left to do is done meanwhile
    pids = {"node": [node.pid for node in nodes.nodes.values()], "member of etcd": nodes.member_pids}
    before = {pid: processor_seconds(pid) for each in pids.values() for pid in each}
    nothing.wait(seconds)
    resident = [each / 1e6 for each in nodes.resident_bytes()]
    print(f"at rest with {partitions} partitions of three replicas: {spread(resident):.0f} MB a node (target 80)")
    for who, each in pids.items():
        shares = [100 * (processor_seconds(pid) - before[pid]) / seconds for pid in each]
        print(f"  {spread(shares):.1f} % of a core a {who}", flush=True)


OURS_ALONE = (*FAULTS, "cut", "many", "coordinator", "starved", "rest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"{', '.join((*OURS_ALONE, *AGAINST_KAFKA))}; all without any")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--count", type=int, help="fail-overs of each kind (20; quick 5)")
    parser.add_argument("--many", type=int, default=1000, help="partitions that a killed node led")
    parser.add_argument("--many-count", type=int, help="how often it is killed (3; quick 1)")
    parser.add_argument(
        "--starved-seconds", type=float, default=60.0, help="how long a busy machine's nodes are looked at"
    )
    parser.add_argument("--partitions", type=int, default=100, help="of nodes at rest")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to look at nodes at rest")
    parser.add_argument("--repeats", type=int, help="turns with Apache Kafka (5; quick 3)")
    parser.add_argument("--mb", type=int, help="of 1 KB records in each run (400; quick 60); half as much of 100 B")
    parser.add_argument("--gb", type=float, help="that an empty follower copies (2; quick 0.2)")
    parser.add_argument("--clients", type=int, default=1, help="processes that produce")
    parser.add_argument("--folder", help="where our data goes; Apache Kafka's goes to the temporary folder")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that no node is left behind
    least = (5, 1, 3, 60, 0.2) if asked.quick else (20, 3, 5, 400, 2.0)
    given = (asked.count, asked.many_count, asked.repeats, asked.mb, asked.gb)
    count, many_count, repeats, mb, gb = (b if a is None else a for a, b in zip(given, least, strict=True))
    parts = asked.parts or (*OURS_ALONE, *AGAINST_KAFKA)
    if unknown := set(parts) - {*OURS_ALONE, *AGAINST_KAFKA}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    for part in OURS_ALONE:
        if part not in parts:
            continue
        if part == "many":
            many(asked.many, int(many_count))
        elif part == "cut":
            cut(int(count))
        elif part == "starved":
            starved(asked.starved_seconds)
        else:
            with cluster(parent=asked.folder) as nodes:
                if part == "coordinator":
                    coordinators(nodes, int(count))
                elif part == "rest":
                    at_rest(nodes, asked.partitions, asked.seconds)
                else:
                    failovers(nodes, FAULTS[part], int(count))
    if any(part in AGAINST_KAFKA for part in parts):
        compare(parts, Options(int(repeats), int(mb), gb, asked.clients, asked.partitions), asked.folder)


if __name__ == "__main__":
    main()
