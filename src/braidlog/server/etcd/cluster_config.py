"""Settings of a node's connection to etcd. Only validates them; `etcd_metadata.py` connects."""

import ssl
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec

from braidlog.cluster.etcd.presence import LEASE_SECONDS
from braidlog.model.address import is_ip_address
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.control.swim import SILENCE_CONFIRMATIONS, SILENCE_MS_MAX
from braidlog.server.etcd.etcd_process import MemberSettings
from braidlog.server.etcd.gateway import GatewaySettings
from braidlog.server.etcd.http_connection import parse_endpoint
from braidlog.server.peers.settings import LOOPBACK, PeersConfig

EMBEDDED: Final = "embedded"
SILENCE_MS: Final = (300, 60_000)
LEASE_SECONDS_MAX: Final = 600


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata of a cluster, kept in etcd. Without `etcd` a node keeps its own metadata in its data folder."""

    etcd: str | list[str] = ""
    """URLs of the members, as a list or separated by commas; or "embedded": this node runs a member itself."""
    prefix: str = "braidlog"
    """Prefix of this cluster's keys: several clusters can share an etcd."""
    user: str = ""
    """etcd user of this node."""
    password: str = ""
    """Password of `user`."""
    token: str = ""
    """Authentication token, sent as is, instead of user and password."""
    ca: str = ""
    """PEM file of the CA of the members' certificates; empty: the machine's trusted CAs."""
    cert: str = ""
    """PEM file of this node's client certificate for etcd."""
    key: str = ""
    """PEM file of the certificate's private key; empty: the key is in `cert`."""
    client_port: int = 2379
    """Client port of an embedded member, on `peers.host`; the same on all machines."""
    peer_port: int = 2380
    """Port of an embedded member for other members, on `peers.host` or loopback; the same on all machines."""
    peers: PeersConfig = PeersConfig()
    rack: str = ""
    """Failure domain of the node: replicas are placed on different racks. Empty: the machine's name."""
    initial_cluster: str = ""
    """All embedded members of a new cluster and their addresses, `node=host,…` or `node=URL,…`. Empty: this member
    alone.
    """
    join: bool = False
    """A node with an empty folder waits for the cluster of another node, and creates none itself."""
    silence_ms: int = SILENCE_MS_MAX
    """How long a node may be silent before two others agree that it is dead; the same on all nodes."""
    lease_seconds: int = LEASE_SECONDS
    """How long etcd keeps the lease of a node that does not renew it; more than twice `silence_ms`."""
    heartbeat_ms: int = 50
    """Heartbeat interval of embedded members."""
    election_ms: int = 500
    """Election timeout of embedded members; at least five heartbeats."""

    def __post_init__(self) -> None:
        for url in self.endpoints:
            parse_endpoint(url)
        is_tls = any(urlsplit(url).scheme == "https" for url in self.endpoints)
        if (self.ca or self.cert) and not is_tls:
            raise ValueError("ca and cert require members with https:// URLs")
        if self.key and not self.cert:
            raise ValueError("key requires cert")
        if self.token and self.user:
            raise ValueError("set either token, or user and password")
        if not self.prefix.strip("/"):
            raise ValueError("prefix must not be empty")
        if not (0 < self.client_port < 65536 and 0 < self.peer_port < 65536 and self.client_port != self.peer_port):
            raise ValueError("client_port and peer_port must be different ports, 1 to 65535")
        if not 5 * self.heartbeat_ms <= self.election_ms <= 50_000 or self.heartbeat_ms < 1:
            raise ValueError("election_ms must be at least five times heartbeat_ms, and at most 50000")
        self._check_liveness()
        if self._is_exposed:
            self._check_exposed()

    def _check_liveness(self) -> None:
        if not SILENCE_MS[0] <= self.silence_ms <= SILENCE_MS[1]:
            raise ValueError(f"silence_ms must be {SILENCE_MS[0]} to {SILENCE_MS[1]}, not {self.silence_ms}")
        lease_seconds_min = self.silence_ms * SILENCE_CONFIRMATIONS // 1000 + 1
        if not lease_seconds_min <= self.lease_seconds <= LEASE_SECONDS_MAX:
            raise ValueError(
                f"lease_seconds must be {lease_seconds_min} to {LEASE_SECONDS_MAX} with silence_ms {self.silence_ms}, "
                f"not {self.lease_seconds}: {SILENCE_CONFIRMATIONS} nodes agree on a silence before a lease ends"
            )

    def _check_exposed(self) -> None:
        host, own = self.peers.host, self.peers.advertised
        if not is_ip_address(host):
            raise ValueError(
                "an embedded etcd member needs an IP address: set cluster.peers.host to one, and advertised_host to "
                f"{host}"
            )
        if is_ip_address(own) and ip_address(own).is_unspecified:
            raise ValueError(
                f"etcd members cannot dial {own}: set cluster.peers.advertised_host to a reachable address"
            )
        for name, url in self._members().items():
            if not parse_endpoint(url).tls:
                with_tls = url.replace("http", "https", 1)
                raise ValueError(
                    f"beyond loopback, etcd members need certificates: initial_cluster = {name}={with_tls},…"
                )

    @property
    def is_embedded(self) -> bool:
        return self.etcd == EMBEDDED

    @property
    def _is_exposed(self) -> bool:
        """Whether an embedded member is reachable from other nodes, on its node's address and with its node's
        certificate.
        """
        return self.is_embedded and self.peers.host not in LOOPBACK

    @property
    def _has_tls(self) -> bool:
        """Whether an embedded member uses its node's certificate and requires client certificates."""
        return self.is_embedded and bool(self.peers.cert)

    def missing_credentials(self) -> list[str]:
        """What any local process can do because credentials are missing, with the remedy."""
        made = "run `braid cluster certificates FOLDER 1 2 …`, set cluster.peers.ca, cert and key"
        found = []
        if not self.peers.cert:
            found.append(f"nodes use no certificates: any process here can act as any principal; {made}")
        if self.is_embedded and not self.peers.cert:
            found.append(f"etcd requires no certificate: any process here can overwrite the metadata; {made}")
        elif self.is_embedded and any(not parse_endpoint(url).tls for url in self._members().values()):
            found.append("etcd members use no certificates among themselves; write https:// in cluster.initial_cluster")
        elif not self.is_embedded and not (self.user or self.token or self.cert):
            found.append(
                "etcd requires no credentials: any process here can overwrite the metadata; set cluster.user or cert"
            )
        return found

    @property
    def endpoints(self) -> list[str]:
        """Client URLs, an embedded member first; the node tries the other members if that one does not answer."""
        if self._is_exposed:
            hosts = [self.peers.advertised, *(parse_endpoint(url).host for url in self._members().values())]
            return [f"https://{_in_url(host)}:{self.client_port}" for host in dict.fromkeys(hosts)]
        if self.is_embedded:
            return [f"{self._scheme}://127.0.0.1:{self.client_port}"]
        urls = self.etcd.split(",") if isinstance(self.etcd, str) else self.etcd
        return [url.strip() for url in urls if url.strip()]

    def gateway(self) -> GatewaySettings:
        return GatewaySettings(endpoints=self.endpoints, user=self.user, password=self.password, token=self.token)

    def _members(self) -> dict[str, str]:
        """Peer URL of each embedded member, by node name."""
        found = {}
        for each in filter(None, map(str.strip, self.initial_cluster.split(","))):
            name, is_pair, place = each.partition("=")
            if not (name and is_pair and place):
                raise ValueError(f"initial_cluster: {each!r} must be node=host")
            found[name] = place if "//" in place else f"{self._scheme}://{_in_url(place)}:{self.peer_port}"
        return found

    @property
    def _scheme(self) -> str:
        return "https" if self._has_tls else "http"

    def member(self, node: str) -> MemberSettings:
        peers = self.peers
        host, own = (peers.host, peers.advertised) if self._is_exposed else ("127.0.0.1", "127.0.0.1")
        members = self._members() or {node: f"{self._scheme}://{_in_url(own)}:{self.peer_port}"}
        if node not in members:
            raise BrokerError(
                Reason.INVALID_SETTING,
                f"cluster.initial_cluster names {', '.join(members)}, but not this node, {node}: add it",
            )
        return MemberSettings(
            name=node,
            client_url=self.endpoints[0],
            peer_url=members[node],
            listen_client_url=f"{self._scheme}://{_in_url(host)}:{self.client_port}",
            listen_peer_url=f"{urlsplit(members[node]).scheme}://{_in_url(host)}:{self.peer_port}",
            initial_cluster=",".join(f"{name}={url}" for name, url in members.items()),
            heartbeat_ms=self.heartbeat_ms,
            election_ms=self.election_ms,
            ca=peers.ca,
            cert=peers.cert,
            key=peers.key,
        )

    def tls(self) -> ssl.SSLContext:
        """TLS settings for https members. Without `ca`, the machine's trusted authorities apply."""
        whose = self._shown
        try:
            context = ssl.create_default_context(cafile=whose.ca or None)
            if whose.cert:
                context.load_cert_chain(whose.cert, whose.key or None)
        except OSError as error:  # includes ssl's errors
            files = ", ".join(name for name in (whose.ca, whose.cert, whose.key) if name)
            raise BrokerError(
                Reason.INVALID_SETTING, f"cluster: TLS with {files}: {error.strerror or error}"
            ) from error
        return context

    def reload_tls(self, context: ssl.SSLContext) -> None:
        """Reload the files for future connections. A replaced authority stays trusted until the node restarts."""
        self.tls()  # check the new files first: half of a pair must not replace a complete one
        whose = self._shown
        if whose.ca:
            context.load_verify_locations(whose.ca)
        if whose.cert:
            context.load_cert_chain(whose.cert, whose.key or None)

    @property
    def _shown(self) -> "PeersConfig | ClusterConfig":
        """The settings with the files: embedded members use those of their nodes."""
        return self.peers if self._has_tls else self


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
