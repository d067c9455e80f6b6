"""What a node says while etcd does not answer."""

from typing import NamedTuple


class Outage(NamedTuple):
    """Since when (monotonic), and what the members said or did not say."""

    since: float
    cause: str
    is_refusal: bool = False
    """They answer, and will not: one is full, or does not know this node."""

    def report(self, now: float) -> str:
        """For people: what is wrong, what goes on, what does not, what to do."""
        what = "has refused changes" if self.is_refusal else "has not answered"
        return "\n".join(
            [
                f"etcd {what} for {max(now - self.since, 0):.0f} s: {self.cause}",
                "  goes on:  producing and consuming, on the leaders there are; groups, commits, transactions and keys",
                "  stands:   topics are not made, changed or deleted; no leader moves; in-sync sets stay as they are",
                "  so:       acks=all stops for a partition of which a follower dies meanwhile",
                "  nothing that was acknowledged is lost, and nothing has to be restarted: it goes on when etcd does",
                "  look:     is a majority of the members running?      etcdctl endpoint status --cluster",
                "            is one out of space?                        etcdctl alarm list",
                "            are its disks slow (fsync over 100 ms)?     its log says 'slow fdatasync'",
                "            does this node reach them?                  the addresses in [cluster] etcd",
                "  a majority that is gone for good: restore a backup of etcd, an older one with `braid cluster recover`",
            ]
        )
