"""The report of a node during an etcd outage."""

from typing import NamedTuple


class Outage(NamedTuple):
    """Start of the outage (monotonic) and the last error."""

    since: float
    cause: str
    is_refusal: bool = False
    """The etcd members answer, but reject requests: one is full, or does not know this node."""

    def report(self, now: float) -> str:
        """Text for operators: what fails, what still works, what does not, what to check."""
        what = "has refused changes" if self.is_refusal else "has not answered"
        return "\n".join(
            [
                f"etcd {what} for {max(now - self.since, 0):.0f} s: {self.cause}",
                "  works:    produce and consume on current leaders; groups, commits, transactions and keys",
                "  blocked:  topics cannot be created, changed or deleted; no leader moves; in-sync sets do not change",
                "  effect:   acks=all stops for a partition if one of its followers dies during the outage",
                "  acknowledged data is safe; the node resumes automatically when etcd answers",
                "  check:    is a majority of the members running?      etcdctl endpoint status --cluster",
                "            is one out of space?                        etcdctl alarm list",
                "            are its disks slow (fsync over 100 ms)?     its log says 'slow fdatasync'",
                "            does this node reach them?                  the addresses in [cluster] etcd",
                "  majority lost: restore a backup of etcd; with an older backup also run `braid cluster recover`",
            ]
        )
