"""`braid cluster`: nodes, and who holds what.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "init": ("braidlog.cli.cluster.init:init", "Make a single node the first of a cluster."),
        "certificates": (
            "braidlog.cli.cluster.certificates:certificates",
            "Make what nodes show each other beyond loopback.",
        ),
        "status": ("braidlog.cli.cluster.inspect:status", "Is everything there? In a few lines."),
        "nodes": ("braidlog.cli.cluster.inspect:nodes", "Every node, whether it lives, what it leads."),
        "partitions": ("braidlog.cli.cluster.inspect:partitions", "Who leads and who holds each partition."),
        "events": ("braidlog.cli.cluster.events:events", "What happened: leaders, nodes, in-sync sets, topics."),
        "drain": ("braidlog.cli.cluster.drain:drain", "Let other nodes lead what a node leads."),
        "elect": ("braidlog.cli.cluster.placement:elect", "Let the preferred leaders lead again."),
        "reassign": ("braidlog.cli.cluster.placement:reassign", "Move partitions to other nodes."),
        "recover": ("braidlog.cli.cluster.recover:recover", "Go on after etcd was lost or set back."),
        "remove": ("braidlog.cli.cluster.remove:remove", "Forget a node that is gone for good."),
        "doctor": ("braidlog.cli.cluster.doctor:doctor", "What is wrong, and what to do about it."),
    },
    epilog="""\b
Example:
  braid dev --nodes 3                             three nodes on this machine
  braid cluster status
  braid cluster partitions --under-replicated
  braid cluster doctor
  braid cluster events --since -10m --follow
  braid cluster elect                             each first replica leads again
  braid cluster reassign plan --nodes 1,2,4 > plan.json
""",
)
def cluster() -> None:
    """Several nodes that are one cluster: which there are, who leads and who holds each partition, what is missing.

    Every partition has replicas on several nodes. One of them leads: it takes records and gives them out. Those that have all
    that it has are in sync; if the leader's node dies, one of them leads next. A partition with fewer in sync than replicas is
    under-replicated: nothing is lost, but one more loss may be one too many.

    Ask any node; --server takes several with commas between, and the first that answers is asked.
    """
