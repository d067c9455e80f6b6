"""Files that others run braidlog with: a systemd unit, Kubernetes manifests, a Compose file, a Prometheus configuration.

Knows: what a node needs of each. Refuses to know: where the text goes.
Invariants: what is named here is there: flags, settings and ports are a node's own, and tests hold them to it. Nothing is open to
a network without tokens.
"""

from collections.abc import Mapping, Sequence

import msgspec

from braidlog.model.reporting.node_report import ADMIN_PORT
from braidlog.tools.deployment import cluster_manifests as cluster


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run, and where."""

    name: str = "braidlog"
    program: str = "/usr/local/bin/braid"
    config: str = "/etc/braidlog/braid.toml"
    image: str = ""
    storage: str = "20Gi"
    host: str = "127.0.0.1"
    """What clients call the machine, and the address its ports are published on."""
    admin: Sequence[str] = (f"127.0.0.1:{ADMIN_PORT}",)
    token_file: str = ""
    ports: Mapping[str, int] = {}
    admin_port: int = ADMIN_PORT
    nodes: int = 1


_SETTINGS = (
    "[auth.tokens]",
    '# app = "<SHA-256 of the token of those who write and read>"',
    "[admin]",
    '# token = "<SHA-256 of the token of those who look after it>"',
)
"""Of a node that listens to a network: without tokens it does not start."""

_ONE_NODE = """\
# It says when it serves: a large folder is looked through first, after a crash. A loop that hangs is started again.
Type=notify
TimeoutStartSec=infinity
WatchdogSec=120
"""


def systemd(wanted: Deployment) -> str:
    is_one = wanted.nodes == 1
    steps = "" if is_one else cluster.systemd_steps(wanted.nodes, wanted.ports)
    return f"""\
# {wanted.name}.service: a braidlog node under systemd.
{steps}\
#   useradd --system --home-dir /var/lib/{wanted.name} --shell /usr/sbin/nologin {wanted.name}
#   braid config init {wanted.config}
#   systemctl enable --now {wanted.name}
[Unit]
Description=braidlog, a commit log
After=network-online.target
Wants=network-online.target

[Service]
{_ONE_NODE if is_one else "Type=exec" + chr(10) + cluster.SYSTEMD_SERVICE}\
User={wanted.name}
Group={wanted.name}
ExecStart={wanted.program} serve --config {wanted.config} --data-dir /var/lib/{wanted.name}
# Certificates are read again; connections stay.
ExecReload=/bin/kill -HUP $MAINPID
# It answers what was asked, syncs, and notes the clean stop.
KillSignal=SIGTERM
TimeoutStopSec=60
Restart=on-failure
RestartSec=2
StateDirectory={wanted.name}
StateDirectoryMode=0700
UMask=0077
LimitNOFILE=65536

# It needs its folder and the network, and nothing else.
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
NoNewPrivileges=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""


def _indented(lines: Sequence[str], spaces: int) -> str:
    return "\n".join(f"{' ' * spaces}{line}" for line in lines)


def kubernetes(wanted: Deployment) -> str:
    """A node, its volume, its settings and its ports. The settings hold tokens: without them it does not listen to a network."""
    name = wanted.name
    ports = "\n".join(
        f"            - {{name: {port}, containerPort: {number}}}" for port, number in wanted.ports.items()
    )
    served = "\n".join(f"    - {{name: {port}, port: {number}}}" for port, number in wanted.ports.items())
    hosts = "\n".join(
        f'            - {{name: BRAID_LISTENERS__{port.upper()}__HOST, value: "0.0.0.0"}}' for port in wanted.ports
    )
    is_one = wanted.nodes == 1
    between = {} if is_one else {"gossip": cluster.GOSSIP_PORT, "replicas": cluster.REPLICA_PORT}
    ports += "".join(f"\n            - {{name: {port}, containerPort: {at}}}" for port, at in between.items())
    served += "".join(f"\n    - {{name: {port}, port: {at}}}" for port, at in between.items())
    environment = "" if is_one else f"{cluster.pod_environment(name, wanted.nodes, wanted.ports)}\n"
    mount = "" if is_one else "            - {name: certificates, mountPath: /certificates, readOnly: true}\n"
    # The key of a node has to be readable by the user that the pod runs as, and by nobody else.
    secret = f"{{secretName: {name}-certificates, defaultMode: 0440}}"
    volume = "" if is_one else f"        - name: certificates\n          secret: {secret}\n"
    numbered = " ".join(cluster.pod_addresses(name, wanted.nodes, "default"))
    steps = (
        ""
        if is_one
        else f"""\
# {wanted.nodes} of them, each with a member of etcd: the image has etcd too. Kubernetes 1.28 or newer, which numbers pods.
# Before it is applied, with your namespace in place of default:
#   braid cluster certificates ./certificates {numbered}
#   rm ./certificates/braidlog-ca.key      (keep a copy of it elsewhere: it is for nodes to come)
#   kubectl create secret generic {name}-certificates --from-file ./certificates
"""
    )
    more = "" if is_one else cluster.disruption_budget(name)
    return f"""\
# A braidlog node on Kubernetes: one pod, one volume.
{steps}\
# First take the # from the lines of the Secret and put in the SHA-256 of real tokens (printf %s "$TOKEN" | sha256sum):
# a node that listens to a network does not start without.
apiVersion: v1
kind: Secret
metadata:
  name: {name}
stringData:
  braid.toml: |
{_indented(_SETTINGS, 4)}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  clusterIP: None
{"" if is_one else cluster.FIND_EACH_OTHER}\
  selector: {{app: {name}}}
  ports:
{served}
    - {{name: admin, port: {wanted.admin_port}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  serviceName: {name}
  replicas: {wanted.nodes}
{"" if is_one else cluster.START_TOGETHER}\
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
{"" if is_one else cluster.pod_placement(name)}\
      # A clean stop answers what was asked, and syncs.
      terminationGracePeriodSeconds: 60
      # Or a service called braid would set variables that the node takes for settings.
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        fsGroup: 10001
        seccompProfile: {{type: RuntimeDefault}}
      containers:
        - name: {name}
          image: {wanted.image}
          command: [braid, serve, --config, /etc/braidlog/braid.toml, --data-dir, /data]
          env:
            - name: POD
              valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}
            - name: NAMESPACE
              valueFrom: {{fieldRef: {{fieldPath: metadata.namespace}}}}
            # Where clients are sent to: a name that is known in every namespace of the cluster.
            - {{name: BRAID_LISTENERS__KAFKA__ADVERTISED_HOST, value: "$(POD).{name}.$(NAMESPACE).svc"}}
            - {{name: BRAID_ADMIN__HOST, value: "0.0.0.0"}}
{hosts}
{environment}\
          ports:
{ports}
            - {{name: admin, containerPort: {wanted.admin_port}}}
          startupProbe:
            httpGet: {{path: /readyz, port: admin}}
            periodSeconds: 2
            failureThreshold: 150
          readinessProbe:
            httpGet: {{path: /readyz, port: admin}}
            periodSeconds: 5
          livenessProbe:
            httpGet: {{path: /healthz, port: admin}}
            periodSeconds: 10
            failureThreshold: 6
          resources:
            requests: {{cpu: 500m, memory: 512Mi}}
            limits: {{memory: 2Gi}}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          volumeMounts:
            - {{name: data, mountPath: /data}}
            - {{name: settings, mountPath: /etc/braidlog, readOnly: true}}
{mount}\
            - {{name: tmp, mountPath: /tmp}}
      volumes:
        - name: settings
          secret: {{secretName: {name}}}
{volume}\
        - name: tmp
          emptyDir: {{}}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        resources:
          requests: {{storage: {wanted.storage}}}
{more}"""


def compose(wanted: Deployment) -> str:
    """A node in a container, its volume and its settings, for one machine."""
    ports = {**wanted.ports, "admin": wanted.admin_port}
    published = [f'- "{wanted.host}:{number}:{number}"  # {port}' for port, number in ports.items()]
    hosts = [f'BRAID_LISTENERS__{port.upper()}__HOST: "0.0.0.0"' for port in wanted.ports]
    return f"""\
# A braidlog node in a container: docker compose up --detach, or podman compose; Compose 2.23.1 or newer, which knows content.
# First take the # from the settings below and put in the SHA-256 of real tokens (printf %s "$TOKEN" | sha256sum):
# a node that listens to a network does not start without.
name: {wanted.name}
services:
  {wanted.name}:
    image: {wanted.image}
    entrypoint: [braid, serve, --config, /etc/braidlog/braid.toml, --data-dir, /data]
    user: "10001:10001"
    environment:
      # Where clients are sent to: another address than this needs --host.
      BRAID_LISTENERS__KAFKA__ADVERTISED_HOST: "{wanted.host}"
      BRAID_ADMIN__HOST: "0.0.0.0"
{_indented(hosts, 6)}
    ports:
{_indented(published, 6)}
    healthcheck:
      test: [CMD, braid, health, --timeout, "5"]
      interval: 10s
      timeout: 10s
      retries: 3
      # A large folder is looked through first, after a crash.
      start_period: 5m
    # A clean stop answers what was asked, and syncs.
    stop_grace_period: 60s
    restart: unless-stopped
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    volumes:
      - data:/data
    configs:
      - source: settings
        target: /etc/braidlog/braid.toml
volumes:
  data: {{}}
configs:
  settings:
    content: |
{_indented(_SETTINGS, 6)}
"""


def prometheus(wanted: Deployment) -> str:
    secret = ""
    if wanted.token_file:
        secret = f"    authorization:\n      credentials_file: {wanted.token_file}\n"
    targets = ", ".join(f'"{target}"' for target in wanted.admin)
    return f"""\
# For prometheus.yml: the figures of braidlog's nodes, and the file that `braid generate prometheus --rules` prints.
rule_files: [{wanted.name}-rules.yml]
scrape_configs:
  - job_name: {wanted.name}
    scrape_interval: 15s
    metrics_path: /metrics
{secret}    static_configs:
      - targets: [{targets}]
"""
