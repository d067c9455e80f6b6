"""What several nodes need beyond one: members of etcd, certificates, addresses that others can dial, and never two away by plan.

Knows: the pieces that `manifests.py` puts into its files. Refuses to know: the files. Each node runs its own member, which
shows the node's certificate and keeps what it knows on the node's volume.
"""

from collections.abc import Iterable, Mapping

GOSSIP_PORT = 8275
REPLICA_PORT = 8276


def systemd_steps(nodes: int, ports: Iterable[str]) -> str:
    """How to set up each machine, as comments; what stands in node.env are settings."""
    members = [f"{number}=10.0.0.{number}" for number in range(1, nodes + 1)]
    doors = "\n".join(f"#   BRAID_LISTENERS__{port.upper()}__HOST=10.0.0.1" for port in ports)
    return f"""\
# One of {nodes} nodes, on machines 10.0.0.1 to 10.0.0.{nodes}: put your own addresses in their place.
# Once, anywhere:      braid cluster certificates ./certificates {" ".join(members)}
# On each machine:     apt-get install etcd-server && systemctl disable --now etcd      (the node runs a member of its own)
# On each machine:     its three files of ./certificates in /etc/braidlog, and in /etc/braidlog/node.env (here of machine 1):
#   BRAID_NODE=1
#   BRAID_CLUSTER__ETCD=embedded
#   BRAID_CLUSTER__INITIAL_CLUSTER={",".join(members)}
#   BRAID_CLUSTER__PEERS__HOST=10.0.0.1
#   BRAID_CLUSTER__PEERS__CA=/etc/braidlog/braidlog-ca.pem
#   BRAID_CLUSTER__PEERS__CERT=/etc/braidlog/node-1.pem
#   BRAID_CLUSTER__PEERS__KEY=/etc/braidlog/node-1.key
{doors}
# On each machine, the same tokens in [auth.tokens]: a node that listens to a network does not start without. Then:
"""


FIND_EACH_OTHER = "  # Nodes look for each other before any of them is ready.\n  publishNotReadyAddresses: true\n"
START_TOGETHER = """\
  podManagementPolicy: Parallel
  # Time to catch up before the next one is restarted.
  minReadySeconds: 30
"""
SYSTEMD_SERVICE = """\
EnvironmentFile=/etc/braidlog/node.env
# The node ends its member of etcd itself, as the last thing it does.
KillMode=mixed
"""


def pod_environment(name: str, nodes: int, ports: Mapping[str, int]) -> str:
    """Settings of each pod, by its number; lines of a container's `env`."""
    host = f"$(POD).{name}.$(NAMESPACE).svc"
    settings = {
        "CLUSTER__ETCD": "embedded",
        "CLUSTER__INITIAL_CLUSTER": ",".join(pod_addresses(name, nodes, "$(NAMESPACE)")),
        "CLUSTER__PEERS__HOST": "0.0.0.0",  # noqa: S104 - of a pod, behind certificates
        "CLUSTER__PEERS__ADVERTISED_HOST": host,
        "CLUSTER__PEERS__CA": "/certificates/braidlog-ca.pem",
        "CLUSTER__PEERS__CERT": "/certificates/node-$(BRAID_NODE).pem",
        "CLUSTER__PEERS__KEY": "/certificates/node-$(BRAID_NODE).key",
        **{f"LISTENERS__{port.upper()}__ADVERTISED_HOST": host for port in ports if port != "kafka"},
    }
    lines = [f'            - {{name: BRAID_{setting}, value: "{value}"}}' for setting, value in settings.items()]
    return "\n".join(
        [
            "            - name: BRAID_NODE",
            "              valueFrom: {fieldRef: {fieldPath: \"metadata.labels['apps.kubernetes.io/pod-index']\"}}",
            *lines,
        ]
    )


def pod_addresses(name: str, nodes: int, namespace: str) -> list[str]:
    """Each node and where it is reached, by which its certificate is checked too."""
    return [f"{number}={name}-{number}.{name}.{namespace}.svc" for number in range(nodes)]


def pod_placement(name: str) -> str:
    """Two nodes on one machine would be lost together. Lines of a pod's `spec`."""
    return f"""\
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - labelSelector: {{matchLabels: {{app: {name}}}}}
              topologyKey: kubernetes.io/hostname
"""


def disruption_budget(name: str) -> str:
    return f"""\
---
# Never two of them away by plan: acks=all needs two replicas in sync.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {name}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{app: {name}}}
"""
