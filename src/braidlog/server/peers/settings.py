"""Where a node is reached by the others of its cluster, by its configuration.

Knows: which settings go together. Refuses to know: who the others are.
"""

import msgspec

from braidlog.model.settings import UNLIMITED
from braidlog.server.peers.certificates import PeerTls, peer_tls

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class PeersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The two ports of nodes among themselves. On other addresses than loopback both need certificates."""

    host: str = "127.0.0.1"
    advertised_host: str = ""
    """What other nodes dial; empty: `host`."""
    gossip_port: int = 8275
    """Who is alive."""
    replica_port: int = 8276
    """Records for followers."""
    ca: str = ""
    """PEM files: the authority of this cluster, and what this node shows."""
    cert: str = ""
    key: str = ""
    replication_bytes_per_second: int = UNLIMITED
    """What all followers that are not in sync may fetch from this node together; -1 is no limit."""

    def __post_init__(self) -> None:
        if not (0 <= self.gossip_port <= 65535 and 0 <= self.replica_port <= 65535):
            raise ValueError("gossip_port and replica_port are 0 to 65535")
        if self.gossip_port == self.replica_port != 0:
            raise ValueError("gossip_port and replica_port are two different ports")
        files = (self.ca, self.cert, self.key)
        if any(files) and not all(files):
            raise ValueError("ca, cert and key belong together")
        if self.host not in LOOPBACK and not self.cert:
            raise ValueError(f"nodes on {self.host} need certificates: set ca, cert and key of cluster.peers")
        if self.replication_bytes_per_second != UNLIMITED and self.replication_bytes_per_second < 1:
            raise ValueError("replication_bytes_per_second is at least 1, or -1 for no limit")

    @property
    def advertised(self) -> str:
        return self.advertised_host or self.host

    def tls(self) -> PeerTls | None:
        """None: loopback may do without."""
        return peer_tls(self.ca, self.cert, self.key) if self.cert else None
