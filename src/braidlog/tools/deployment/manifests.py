"""Deployment files: a systemd unit, Kubernetes manifests, a Compose file, a Prometheus configuration.

Tests check that the flags, settings and ports in the files exist. No file opens a node to a network without tokens.
"""

from collections.abc import Mapping, Sequence

import msgspec

from braidlog.model.reporting.node_report import ADMIN_PORT
from braidlog.tools.deployment import cluster_manifests as cluster


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a deployment."""

    name: str = "braidlog"
    program: str = "/usr/local/bin/braid"
    config: str = "/etc/braidlog/braid.toml"
    image: str = ""
    storage: str = "20Gi"
    host: str = "127.0.0.1"
    """Address that clients connect to, on which the ports are published."""
    admin: Sequence[str] = (f"127.0.0.1:{ADMIN_PORT}",)
    token_file: str = ""
    ports: Mapping[str, int] = {}
    admin_port: int = ADMIN_PORT
    nodes: int = 1


_SETTINGS = (
    "[auth.tokens]",
    '# app = "<SHA-256 of the application token>"',
    "[admin]",
    '# token = "<SHA-256 of the operator token>"',
)
"""Settings of a node that listens beyond loopback, which requires tokens."""

_ONE_NODE = """\
# The node reports when it serves; after a crash it first recovers its folder. A hanging event loop is restarted.
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
# Reload certificates without closing connections.
ExecReload=/bin/kill -HUP $MAINPID
# Drain requests, sync, and record the clean stop.
KillSignal=SIGTERM
TimeoutStopSec=60
Restart=on-failure
RestartSec=2
StateDirectory={wanted.name}
StateDirectoryMode=0700
UMask=0077
LimitNOFILE=65536

# The node needs only its folder and the network.
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
    """Return manifests of a node with volume, settings and ports. The settings contain the required tokens."""
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
    # The key of a node must be readable by the pod's user only.
    secret = f"{{secretName: {name}-certificates, defaultMode: 0440}}"
    volume = "" if is_one else f"        - name: certificates\n          secret: {secret}\n"
    numbered = " ".join(cluster.pod_addresses(name, wanted.nodes, "default"))
    steps = (
        ""
        if is_one
        else f"""\
# {wanted.nodes} pods, each with a member of etcd, which the image must contain. Kubernetes 1.28 or newer, which numbers pods.
# Before you apply this file, with your namespace instead of default:
#   braid cluster certificates ./certificates {numbered}
#   rm ./certificates/braidlog-ca.key      (keep a copy elsewhere, for additional nodes)
#   kubectl create secret generic {name}-certificates --from-file ./certificates
"""
    )
    more = "" if is_one else cluster.disruption_budget(name)
    return f"""\
# A braidlog node on Kubernetes: one pod, one volume.
{steps}\
# First uncomment the lines of the Secret and insert the SHA-256 of real tokens (printf %s "$TOKEN" | sha256sum):
# without tokens a node refuses to listen beyond loopback.
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
      # A graceful stop drains requests and syncs.
      terminationGracePeriodSeconds: 60
      # A service named braid would set variables that the node reads as settings.
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
            # Address for clients, resolvable in every namespace of the cluster.
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
    """Return a Compose file of a node in a container, with volume and settings, for one machine."""
    ports = {**wanted.ports, "admin": wanted.admin_port}
    published = [f'- "{wanted.host}:{number}:{number}"  # {port}' for port, number in ports.items()]
    hosts = [f'BRAID_LISTENERS__{port.upper()}__HOST: "0.0.0.0"' for port in wanted.ports]
    return f"""\
# A braidlog node in a container: docker compose up --detach, or podman compose; Compose 2.23.1 or newer, which supports content.
# First uncomment the settings below and insert the SHA-256 of real tokens (printf %s "$TOKEN" | sha256sum):
# without tokens a node refuses to listen beyond loopback.
name: {wanted.name}
services:
  {wanted.name}:
    image: {wanted.image}
    entrypoint: [braid, serve, --config, /etc/braidlog/braid.toml, --data-dir, /data]
    user: "10001:10001"
    environment:
      # Address for clients; generate with --host to change it.
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
      # After a crash the node first recovers its folder.
      start_period: 5m
    # A graceful stop drains requests and syncs.
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
# For prometheus.yml: the metrics of braidlog's nodes, and the rules file of `braid generate prometheus --rules`.
rule_files: [{wanted.name}-rules.yml]
scrape_configs:
  - job_name: {wanted.name}
    scrape_interval: 15s
    metrics_path: /metrics
{secret}    static_configs:
      - targets: [{targets}]
"""
