"""Where a node finds etcd, by its configuration.

Knows: which settings go together. Refuses to know: whether anybody answers there (`cluster_store.py`).
"""

import ssl
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec

from braidlog.cluster.etcd.presence import LEASE_SECONDS
from braidlog.model.address import is_ip_address
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.swim import FINDERS, SILENCE_MS_MAX
from braidlog.server.etcd.gateway import GatewaySettings
from braidlog.server.etcd.http import parse_endpoint
from braidlog.server.etcd.member import MemberSettings
from braidlog.server.peers.settings import LOOPBACK, PeersConfig

EMBEDDED: Final = "embedded"
SILENCE_MS: Final = (300, 60_000)
LEASE_SECONDS_MAX: Final = 600


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata of a cluster, kept in etcd. Without `etcd` a node keeps its own in its data folder, and needs none.
    """

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
    """Of an embedded member, on `peers.host`; the same on all machines."""
    peer_port: int = 2380
    peers: PeersConfig = PeersConfig()
    rack: str = ""
    """What fails together with others of the same name: copies are kept apart by it. Empty: the machine's name."""
    initial_cluster: str = ""
    """All embedded members of a new cluster and where they reach each other, `node=host,…` or `node=URL,…`.
    Empty: this one alone."""
    join: bool = False
    """A node with an empty folder waits for a cluster that another one begins, and begins none itself."""
    silence_ms: int = SILENCE_MS_MAX
    """How long a node may leave others without an answer before two of them agree that it is dead; the same on all
    nodes.
    """
    lease_seconds: int = LEASE_SECONDS
    """How long etcd keeps the lease of a node that does not renew it; longer than two times `silence_ms`."""
    heartbeat_ms: int = 50
    """How often embedded members say that they live."""
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
        self._check_liveness()
        if self._is_exposed:
            self._check_exposed()

    def _check_liveness(self) -> None:
        if not SILENCE_MS[0] <= self.silence_ms <= SILENCE_MS[1]:
            raise ValueError(f"silence_ms is {SILENCE_MS[0]} to {SILENCE_MS[1]}, not {self.silence_ms}")
        lease_seconds_min = self.silence_ms * FINDERS // 1000 + 1
        if not lease_seconds_min <= self.lease_seconds <= LEASE_SECONDS_MAX:
            raise ValueError(
                f"lease_seconds is {lease_seconds_min} to {LEASE_SECONDS_MAX} with silence_ms {self.silence_ms}, "
                f"not {self.lease_seconds}: {FINDERS} nodes agree on a silence before a lease ends"
            )

    def _check_exposed(self) -> None:
        host, own = self.peers.host, self.peers.advertised
        if not is_ip_address(host):
            raise ValueError(
                "an embedded member of etcd listens on an address: set cluster.peers.host to one, and "
                f"advertised_host to {host}"
            )
        if is_ip_address(own) and ip_address(own).is_unspecified:
            raise ValueError(
                f"members of etcd cannot dial {own}: set cluster.peers.advertised_host to where others reach it"
            )
        for name, url in self._members().items():
            if not parse_endpoint(url).tls:
                with_tls = url.replace("http", "https", 1)
                raise ValueError(
                    f"beyond loopback members of etcd show certificates: initial_cluster = {name}={with_tls},…"
                )

    @property
    def is_embedded(self) -> bool:
        return self.etcd == EMBEDDED

    @property
    def _is_exposed(self) -> bool:
        """An embedded member that others reach: on its node's address, with its node's certificate."""
        return self.is_embedded and self.peers.host not in LOOPBACK

    @property
    def _has_tls(self) -> bool:
        """An embedded member that shows its node's certificate, and asks for one."""
        return self.is_embedded and bool(self.peers.cert)

    def open_ports(self) -> list[str]:
        """What any process of this machine can do for want of credentials, with the remedy."""
        made = "run `braid cluster certificates FOLDER 1 2 …`, set cluster.peers.ca, cert and key"
        found = []
        if not self.peers.cert:
            found.append(f"nodes show no certificates: any process here can act as any principal; {made}")
        if self.is_embedded and not self.peers.cert:
            found.append(f"etcd asks for no certificate: any process here can overwrite the metadata; {made}")
        elif self.is_embedded and any(not parse_endpoint(url).tls for url in self._members().values()):
            found.append("members of etcd show each other no certificates; write https:// in cluster.initial_cluster")
        elif not self.is_embedded and not (self.user or self.token or self.cert):
            found.append(
                "etcd asks for no credentials: any process here can overwrite the metadata; set cluster.user or cert"
            )
        return found

    @property
    def endpoints(self) -> list[str]:
        """An embedded member first; its node asks the others when that one does not answer."""
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
        """Where each embedded member reaches the others, by its node."""
        found = {}
        for each in filter(None, map(str.strip, self.initial_cluster.split(","))):
            name, is_pair, place = each.partition("=")
            if not (name and is_pair and place):
                raise ValueError(f"initial_cluster: {each!r} is not node=host")
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
                f"cluster.initial_cluster names {', '.join(members)}, and not this node, {node}: add it",
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
        """For the members that want it. Without `ca`, those that the machine trusts are trusted."""
        whose = self._shown
        try:
            context = ssl.create_default_context(cafile=whose.ca or None)
            if whose.cert:
                context.load_cert_chain(whose.cert, whose.key or None)
        except OSError as error:  # ssl's own errors are of this kind too
            files = ", ".join(name for name in (whose.ca, whose.cert, whose.key) if name)
            raise BrokerError(
                Reason.INVALID_SETTING, f"cluster: TLS with {files}: {error.strerror or error}"
            ) from error
        return context

    def read_tls_again(self, context: ssl.SSLContext) -> None:
        """For the connections to come. An authority that was replaced is trusted until the node's next start."""
        self.tls()  # first a fresh one: half of a pair must not replace the whole one that is in use
        whose = self._shown
        if whose.ca:
            context.load_verify_locations(whose.ca)
        if whose.cert:
            context.load_cert_chain(whose.cert, whose.key or None)

    @property
    def _shown(self) -> "PeersConfig | ClusterConfig":
        """Whose files: embedded members have those of their nodes."""
        return self.peers if self._has_tls else self


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
