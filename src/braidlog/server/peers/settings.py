"""Settings of the ports between the nodes of a cluster."""

import msgspec

from braidlog.model.settings import UNLIMITED
from braidlog.server.peers.certificates import PeerTls, peer_tls

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class PeersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The two ports between nodes. On addresses other than loopback both need certificates."""

    host: str = "127.0.0.1"
    """Address on which both ports listen. Addresses other than loopback need `ca`, `cert` and `key`."""
    advertised_host: str = ""
    """Host that other nodes dial; empty: `host`."""
    gossip_port: int = 8275
    """Port of failure detection, and of key requests between nodes."""
    replica_port: int = 8276
    """Port of replication, and of other requests between nodes."""
    ca: str = ""
    """PEM file of the cluster's CA, which signs the certificates of all nodes. Set it with `cert` and `key`."""
    cert: str = ""
    """PEM file of this node's certificate."""
    key: str = ""
    """PEM file of the certificate's private key."""
    replication_bytes_per_second: int = UNLIMITED
    """Rate limit for all followers together that are not in sync; -1 is no limit."""

    def __post_init__(self) -> None:
        if not (0 <= self.gossip_port <= 65535 and 0 <= self.replica_port <= 65535):
            raise ValueError("gossip_port and replica_port must be 0 to 65535")
        if self.gossip_port == self.replica_port != 0:
            raise ValueError("gossip_port and replica_port must differ")
        files = (self.ca, self.cert, self.key)
        if any(files) and not all(files):
            raise ValueError("set ca, cert and key together")
        if self.host not in LOOPBACK and not self.cert:
            raise ValueError(f"peer ports on {self.host} need certificates: set ca, cert and key of cluster.peers")
        if self.replication_bytes_per_second != UNLIMITED and self.replication_bytes_per_second < 1:
            raise ValueError("replication_bytes_per_second must be at least 1, or -1 for no limit")

    @property
    def advertised(self) -> str:
        return self.advertised_host or self.host

    def tls(self) -> PeerTls | None:
        """TLS contexts; None for loopback without certificates."""
        return peer_tls(self.ca, self.cert, self.key) if self.cert else None
