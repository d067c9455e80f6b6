"""`braid cluster`: nodes, leaders and replicas."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "init": ("braidlog.cli.cluster.init:init", "Turn a single node into the first node of a cluster."),
        "certificates": (
            "braidlog.cli.cluster.certificates:certificates",
            "Create the nodes' TLS certificates.",
        ),
        "status": ("braidlog.cli.cluster.inspect:status", "Summarize cluster health."),
        "nodes": ("braidlog.cli.cluster.inspect:nodes", "List nodes with state, leaders and replicas."),
        "partitions": ("braidlog.cli.cluster.inspect:partitions", "List partitions with leader and replicas."),
        "events": ("braidlog.cli.cluster.events:events", "List cluster events."),
        "drain": ("braidlog.cli.cluster.drain:drain", "Move leadership away from a node."),
        "elect": ("braidlog.cli.cluster.placement:elect", "Elect preferred leaders."),
        "reassign": ("braidlog.cli.cluster.placement:reassign", "Move partitions between nodes."),
        "recover": ("braidlog.cli.cluster.recover:recover", "Recover after etcd was lost or restored."),
        "remove": ("braidlog.cli.cluster.remove:remove", "Remove a stopped node from the cluster."),
        "doctor": ("braidlog.cli.cluster.doctor:doctor", "Diagnose cluster problems and suggest remedies."),
    },
    epilog="""\b
Example:
  braid dev --nodes 3                             three nodes on this machine
  braid cluster status
  braid cluster partitions --under-replicated
  braid cluster doctor
  braid cluster events --since -10m --follow
  braid cluster elect                             elect preferred leaders
  braid cluster reassign plan --nodes 1,2,4 > plan.json
""",
)
def cluster() -> None:
    """Show and change the nodes, leaders and replicas of a cluster.

    Every partition has replicas on several nodes. Its leader serves producers and consumers. A follower that has all
    records of the leader is in sync, and can become leader if the leader fails. A partition with fewer in-sync replicas
    than replicas is under-replicated: no record is lost, but another failure may make it unavailable.

    Connect to any node; --server takes several addresses separated by commas, and uses the first that answers.
    """
