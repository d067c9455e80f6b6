"""Port to etcd: range reads, conditional transactions, watches, leases, compaction.

Does not handle: HTTP, the meaning of keys. `server/etcd/gateway.py` talks to a real etcd. One script of calls verifies
that the simulator's model (`tests/simulation/etcd.py`) behaves like the real one.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


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


class EtcdError(Exception):
    """etcd did not perform a request; the text gives the reason."""


class EtcdAwayError(EtcdError):
    """No member answered in time. The outcome is unknown; etcd may still perform the request later."""


class EtcdRefusedError(EtcdError):
    """A member rejected the request: etcd is full, the request is too large or not permitted. Nothing was changed."""


class EtcdForeignError(EtcdRefusedError):
    """etcd holds values that no node of this cluster wrote."""

    def __init__(self, what: str) -> None:
        super().__init__(f"metadata in etcd is not this cluster's: {what}, and restrict access to etcd")


class EtcdLeaseError(EtcdRefusedError):
    """The lease expired or never existed."""


class EtcdCompactedError(EtcdError):
    """The requested revision is older than what etcd keeps; read the current state."""


class Range(NamedTuple):
    """The keys from `first` up to, but not including, `end`."""

    first: bytes
    end: bytes

    def has(self, key: bytes) -> bool:
        return self.first <= key < self.end


class Item(NamedTuple):
    key: bytes
    value: bytes
    revision: int
    """Revision of the last write."""


class Reading(NamedTuple):
    """Items of a range. `more`: the range has items beyond the limit."""

    items: Sequence[Item]
    revision: int
    more: bool = False


class Holds(NamedTuple):
    """A condition: the key has this value. None: the key does not exist."""

    key: bytes
    value: bytes | None


class Put(NamedTuple):
    key: bytes
    value: bytes
    lease: int = 0


class Outcome(NamedTuple):
    """Whether all conditions held and everything was written, and etcd's revision afterwards."""

    done: bool
    revision: int


class Change(NamedTuple):
    """A new value of a key; None if the key was deleted or its lease expired."""

    key: bytes
    value: bytes | None
    revision: int


class Watch(Protocol):
    """Changes after a revision, each once, in revision order per range, until the watch fails."""

    async def next(self) -> Sequence[Change]:
        """Wait for changes. Raises `EtcdAwayError` if the watch failed or `stop` was called, `EtcdCompactedError` if
        it cannot continue.
        """
        ...

    def stop(self) -> None: ...


class Etcd(Protocol):
    """Operations on etcd. Every call may raise `EtcdAwayError` or `EtcdRefusedError`."""

    async def read(self, keys: Range, *, limit: int = 0, revision: int = 0, keys_only: bool = False) -> Reading:
        """Read a range in key order. Without a revision the read is linearizable: it sees everything done before the
        call.
        """
        ...

    async def write(
        self, puts: Sequence[Put], *, deletes: Sequence[Range] = (), conditions: Sequence[Holds] = ()
    ) -> Outcome:
        """Write everything, or nothing if a condition does not hold."""
        ...

    async def watch(self, ranges: Sequence[Range], after: int) -> Watch: ...

    async def compact(self, revision: int) -> None:
        """Discard values that were overwritten or deleted before that revision."""
        ...

    async def grant(self, seconds: int) -> int:
        """Create a lease. Its keys are deleted if it is not renewed for this time."""
        ...

    async def keep_alive(self, lease: int) -> bool:
        """Renew a lease; False if it has expired."""
        ...

    async def revoke(self, lease: int) -> None: ...
