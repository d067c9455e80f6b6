"""Where a node finds etcd, by its configuration.

Knows: which settings go together. Refuses to know: whether anybody answers there (`cluster_store.py`).
"""

import ssl
from typing import Final
from urllib.parse import urlsplit

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.server.etcd.gateway import GatewaySettings
from braidlog.server.etcd.http import parse_endpoint
from braidlog.server.etcd.member import MemberSettings
from braidlog.server.peers.settings import PeersConfig

EMBEDDED: Final = "embedded"


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata of a cluster, kept in etcd. Without `etcd` a node keeps its own in its data folder, and needs none."""

    etcd: str | list[str] = ""
    """URLs of the members, as a list or with commas between; or "embedded": this node runs one beside itself."""
    prefix: str = "braidlog"
    """The keys of this cluster begin with it: several clusters can share an etcd."""
    user: str = ""
    password: str = ""
    token: str = ""
    """Sent as it is, in place of user and password."""
    ca: str = ""
    """PEM files: who signed the members' certificates, and what this node shows them."""
    cert: str = ""
    key: str = ""
    client_port: int = 2379
    """Of an embedded member, on loopback."""
    peer_port: int = 2380
    peers: PeersConfig = PeersConfig()
    rack: str = ""
    """What fails together with others of the same name: copies are kept apart by it. Empty: the machine's name."""
    initial_cluster: str = ""
    """All embedded members of a new cluster and where they reach each other, `node=URL,node=URL`; empty: this one alone."""
    heartbeat_ms: int = 50
    election_ms: int = 500
    """How long embedded members wait for the one that leads them; five heartbeats at least."""

    def __post_init__(self) -> None:
        for url in self.endpoints:
            parse_endpoint(url)
        is_tls = any(urlsplit(url).scheme == "https" for url in self.endpoints)
        if (self.ca or self.cert) and not is_tls:
            raise ValueError("ca and cert are for members with https:// URLs")
        if self.key and not self.cert:
            raise ValueError("a key needs its cert")
        if self.token and self.user:
            raise ValueError("either a token, or user and password")
        if not self.prefix.strip("/"):
            raise ValueError("prefix must not be empty")
        if not (0 < self.client_port < 65536 and 0 < self.peer_port < 65536 and self.client_port != self.peer_port):
            raise ValueError("client_port and peer_port are two different ports, 1 to 65535")
        if not 5 * self.heartbeat_ms <= self.election_ms <= 50_000 or self.heartbeat_ms < 1:
            raise ValueError("election_ms is five times heartbeat_ms at least, and 50000 at most")

    @property
    def is_embedded(self) -> bool:
        return self.etcd == EMBEDDED

    @property
    def endpoints(self) -> list[str]:
        if self.is_embedded:
            return [f"http://127.0.0.1:{self.client_port}"]
        urls = self.etcd.split(",") if isinstance(self.etcd, str) else self.etcd
        return [url.strip() for url in urls if url.strip()]

    def gateway(self) -> GatewaySettings:
        return GatewaySettings(endpoints=self.endpoints, user=self.user, password=self.password, token=self.token)

    def member(self, node: str) -> MemberSettings:
        peer_url = f"http://127.0.0.1:{self.peer_port}"
        return MemberSettings(
            name=node,
            client_url=self.endpoints[0],
            peer_url=peer_url,
            initial_cluster=self.initial_cluster or f"{node}={peer_url}",
            heartbeat_ms=self.heartbeat_ms,
            election_ms=self.election_ms,
        )

    def tls(self) -> ssl.SSLContext:
        """For the members that want it. Without `ca`, those that the machine trusts are trusted."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except OSError as error:  # ssl's own errors are of this kind too
            files = ", ".join(name for name in (self.ca, self.cert, self.key) if name)
            raise BrokerError(
                Reason.INVALID_SETTING, f"cluster: TLS with {files}: {error.strerror or error}"
            ) from error
        return context
