"""Parts of deployment files that clusters need: etcd members, certificates, reachable addresses, disruption budgets.

`manifests.py` puts them into its files. Each node runs its own etcd member, which uses the node's certificate and
stores its data on the node's volume.
"""

from collections.abc import Iterable, Mapping

GOSSIP_PORT = 8275
REPLICA_PORT = 8276


def systemd_steps(nodes: int, ports: Iterable[str]) -> str:
    """Return comments that explain how to set up each machine, with the settings of node.env."""
    members = [f"{number}=10.0.0.{number}" for number in range(1, nodes + 1)]
    doors = "\n".join(f"#   BRAID_LISTENERS__{port.upper()}__HOST=10.0.0.1" for port in ports)
    return f"""\
# One of {nodes} nodes, on machines 10.0.0.1 to 10.0.0.{nodes}: replace the addresses by your own.
# Once, anywhere:      braid cluster certificates ./certificates {" ".join(members)}
# On each machine:     apt-get install etcd-server && systemctl disable --now etcd      (the node runs a member of its own)
# On each machine:     copy its three files of ./certificates to /etc/braidlog, and write /etc/braidlog/node.env (here machine 1):
#   BRAID_NODE=1
#   BRAID_CLUSTER__ETCD=embedded
#   BRAID_CLUSTER__INITIAL_CLUSTER={",".join(members)}
#   BRAID_CLUSTER__PEERS__HOST=10.0.0.1
#   BRAID_CLUSTER__PEERS__CA=/etc/braidlog/braidlog-ca.pem
#   BRAID_CLUSTER__PEERS__CERT=/etc/braidlog/node-1.pem
#   BRAID_CLUSTER__PEERS__KEY=/etc/braidlog/node-1.key
{doors}
# On each machine, the same tokens in [auth.tokens]: without tokens a node refuses to listen beyond loopback. Then:
"""


FIND_EACH_OTHER = "  # Nodes need to find each other before they are ready.\n  publishNotReadyAddresses: true\n"
START_TOGETHER = """\
  podManagementPolicy: Parallel
  # Time to catch up before the next pod is restarted.
  minReadySeconds: 30
"""
SYSTEMD_SERVICE = """\
EnvironmentFile=/etc/braidlog/node.env
# The node stops its etcd member itself, at the end of its shutdown.
KillMode=mixed
"""


def pod_environment(name: str, nodes: int, ports: Mapping[str, int]) -> str:
    """Return the lines of a container's `env` with the settings of each pod."""
    host = f"$(POD).{name}.$(NAMESPACE).svc"
    settings = {
        "CLUSTER__ETCD": "embedded",
        "CLUSTER__INITIAL_CLUSTER": ",".join(pod_addresses(name, nodes, "$(NAMESPACE)")),
        "CLUSTER__PEERS__HOST": "0.0.0.0",  # noqa: S104 - in a pod, protected by certificates
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
    """Return each node with its address, which is also in its certificate."""
    return [f"{number}={name}-{number}.{name}.{namespace}.svc" for number in range(nodes)]


def pod_placement(name: str) -> str:
    """Return the lines of a pod's `spec` that keep nodes on different machines."""
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
# At most one pod is down by planned disruptions: acks=all needs two in-sync replicas.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {name}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{app: {name}}}
"""
