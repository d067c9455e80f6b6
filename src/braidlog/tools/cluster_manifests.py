"""What several nodes need beyond one: etcd, certificates, addresses that others can dial, and never two away by plan.

Knows: the pieces that `manifests.py` puts into its files. Refuses to know: the files. etcd runs by itself here, so
that a node can be made anew without its member.
"""

from collections.abc import Iterable, Mapping

GOSSIP_PORT = 8275
REPLICA_PORT = 8276
ETCD_CLIENT_PORT = 2379
ETCD_PEER_PORT = 2380


def systemd_steps(nodes: int, ports: Iterable[str]) -> str:
    """How to set up each machine, as comments; what stands in node.env are settings."""
    members = ",".join(f"http://10.0.0.{number}:{ETCD_CLIENT_PORT}" for number in range(1, nodes + 1))
    first = ",".join(f"node{number}=http://10.0.0.{number}:{ETCD_PEER_PORT}" for number in range(1, nodes + 1))
    numbers = " ".join(map(str, range(1, nodes + 1)))
    doors = "\n".join(f"#   BRAID_LISTENERS__{port.upper()}__HOST=10.0.0.1" for port in ports)
    return f"""\
# One of {nodes} nodes, on machines 10.0.0.1 to 10.0.0.{nodes}: put your own addresses in their place.
# Once, anywhere:      braid cluster certificates ./certificates {numbers}
# On each machine:     etcd-server, with in /etc/default/etcd (here of machine 1):
#   ETCD_NAME=node1
#   ETCD_LISTEN_PEER_URLS=http://10.0.0.1:{ETCD_PEER_PORT}
#   ETCD_INITIAL_ADVERTISE_PEER_URLS=http://10.0.0.1:{ETCD_PEER_PORT}
#   ETCD_LISTEN_CLIENT_URLS=http://10.0.0.1:{ETCD_CLIENT_PORT}
#   ETCD_ADVERTISE_CLIENT_URLS=http://10.0.0.1:{ETCD_CLIENT_PORT}
#   ETCD_INITIAL_CLUSTER={first}
#   ETCD_INITIAL_CLUSTER_TOKEN=braidlog
# (a network that others share needs TLS there too: cluster.ca, cluster.cert and cluster.key are what the nodes show).
# On each machine:     its three files of ./certificates in /etc/braidlog, and in /etc/braidlog/node.env (here of machine 1):
#   BRAID_NODE=1
#   BRAID_CLUSTER__ETCD={members}
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
SYSTEMD_AFTER = "After=etcd.service\nWants=etcd.service\n"
SYSTEMD_ENVIRONMENT = "EnvironmentFile=/etc/braidlog/node.env\n"


def pod_environment(name: str, nodes: int, ports: Mapping[str, int]) -> str:
    """Settings of each pod, by its number; lines of a container's `env`."""
    host = f"$(POD).{name}.$(NAMESPACE).svc"
    members = ",".join(
        f"http://{name}-etcd-{number}.{name}-etcd.$(NAMESPACE).svc:{ETCD_CLIENT_PORT}" for number in range(nodes)
    )
    settings = {
        "CLUSTER__ETCD": members,
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


def etcd_manifests(name: str, nodes: int, image: str) -> str:
    """As many members of etcd as there are nodes, with their own volumes."""
    own = f"{name}-etcd"
    first = ",".join(f"{own}-{at}=http://{own}-{at}.{own}.$(NAMESPACE).svc:{ETCD_PEER_PORT}" for at in range(nodes))
    return f"""\
---
apiVersion: v1
kind: Service
metadata:
  name: {own}
  labels: {{app: {own}}}
spec:
  clusterIP: None
  # Members look for each other before any of them is ready.
  publishNotReadyAddresses: true
  selector: {{app: {own}}}
  ports:
    - {{name: client, port: {ETCD_CLIENT_PORT}}}
    - {{name: peer, port: {ETCD_PEER_PORT}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {own}
  labels: {{app: {own}}}
spec:
  serviceName: {own}
  replicas: {nodes}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{app: {own}}}
  template:
    metadata:
      labels: {{app: {own}}}
    spec:
{pod_placement(own)}\
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        fsGroup: 10001
        seccompProfile: {{type: RuntimeDefault}}
      containers:
        - name: etcd
          image: {image}
          command: [etcd]
          env:
            - name: POD
              valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}
            - name: NAMESPACE
              valueFrom: {{fieldRef: {{fieldPath: metadata.namespace}}}}
            - {{name: ETCD_NAME, value: "$(POD)"}}
            - {{name: ETCD_DATA_DIR, value: /data/etcd}}
            - {{name: ETCD_LISTEN_CLIENT_URLS, value: "http://0.0.0.0:{ETCD_CLIENT_PORT}"}}
            - {{name: ETCD_LISTEN_PEER_URLS, value: "http://0.0.0.0:{ETCD_PEER_PORT}"}}
            - {{name: ETCD_ADVERTISE_CLIENT_URLS, value: "http://$(POD).{own}.$(NAMESPACE).svc:{ETCD_CLIENT_PORT}"}}
            - {{name: ETCD_INITIAL_ADVERTISE_PEER_URLS, value: "http://$(POD).{own}.$(NAMESPACE).svc:{ETCD_PEER_PORT}"}}
            - {{name: ETCD_INITIAL_CLUSTER, value: "{first}"}}
            - {{name: ETCD_INITIAL_CLUSTER_TOKEN, value: {name}}}
            - {{name: ETCD_HEARTBEAT_INTERVAL, value: "50"}}
            - {{name: ETCD_ELECTION_TIMEOUT, value: "500"}}
          ports:
            - {{name: client, containerPort: {ETCD_CLIENT_PORT}}}
            - {{name: peer, containerPort: {ETCD_PEER_PORT}}}
          readinessProbe:
            httpGet: {{path: /health, port: client}}
            periodSeconds: 5
          resources:
            requests: {{cpu: 100m, memory: 128Mi}}
            limits: {{memory: 512Mi}}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          volumeMounts:
            - {{name: data, mountPath: /data}}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        resources:
          requests: {{storage: 4Gi}}
{disruption_budget(own)}"""
