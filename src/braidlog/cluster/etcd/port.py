"""What is used of etcd: reads of ranges, transactions that compare first, watches, leases, compaction.

Knows: shapes. Refuses to know: HTTP, and what the keys mean. `server/etcd/gateway.py` speaks to a real one; the model
that the simulator uses (`tests/simulation/etcd.py`) is held to the real one by one script of calls.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class EtcdError(Exception):
    """etcd did not do what it was asked; the text says why, for people."""


class EtcdAwayError(EtcdError):
    """No member answered in time. Whether it was done is not known: it may even be done later."""


class EtcdRefusedError(EtcdError):
    """A member answered that it will not: full, too large, not allowed. Nothing was done."""


class EtcdForeignError(EtcdRefusedError):
    """etcd answers with values that no node of this cluster wrote."""

    def __init__(self, what: str) -> None:
        super().__init__(f"metadata in etcd is not this cluster's: {what}, and restrict access to etcd")


class EtcdLeaseError(EtcdRefusedError):
    """The lease has run out, or never was."""


class EtcdCompactedError(EtcdError):
    """The revision asked for is older than what etcd keeps: read anew."""


class Range(NamedTuple):
    """The keys from `first` up to but not `end`."""

    first: bytes
    end: bytes

    def has(self, key: bytes) -> bool:
        return self.first <= key < self.end


class Item(NamedTuple):
    key: bytes
    value: bytes
    revision: int
    """When it was last written."""


class Reading(NamedTuple):
    """What a range held. `more`: there were more items than asked for."""

    items: Sequence[Item]
    revision: int
    more: bool = False


class Holds(NamedTuple):
    """A condition: the key has that value. None: it does not exist."""

    key: bytes
    value: bytes | None


class Put(NamedTuple):
    key: bytes
    value: bytes
    lease: int = 0


class Outcome(NamedTuple):
    """Whether all conditions held, so that everything was written; and etcd's revision afterwards."""

    done: bool
    revision: int


class Change(NamedTuple):
    """A key got a value, or None: it was deleted, or its lease ran out."""

    key: bytes
    value: bytes | None
    revision: int


class Watch(Protocol):
    """Changes after a revision, each once, those of one range in the order of their revisions, until something breaks."""

    async def next(self) -> Sequence[Change]:
        """Waits for some. `EtcdAwayError`: it broke, or `stop` was called; `EtcdCompactedError`: it cannot go on."""
        ...

    def stop(self) -> None: ...


class Etcd(Protocol):
    """Every call may raise `EtcdAwayError` and `EtcdRefusedError`."""

    async def read(self, keys: Range, *, limit: int = 0, revision: int = 0, keys_only: bool = False) -> Reading:
        """In the order of keys. Without a revision: linearizable, nothing that was done before the call is missed."""
        ...

    async def write(
        self, puts: Sequence[Put], *, deletes: Sequence[Range] = (), conditions: Sequence[Holds] = ()
    ) -> Outcome:
        """All of it, or nothing if a condition does not hold."""
        ...

    async def watch(self, ranges: Sequence[Range], after: int) -> Watch: ...

    async def compact(self, revision: int) -> None:
        """Let go of what was overwritten or deleted before that revision."""
        ...

    async def grant(self, seconds: int) -> int:
        """A lease: keys written with it go when it is not kept alive for so long."""
        ...

    async def keep_alive(self, lease: int) -> bool:
        """False: the lease has run out."""
        ...

    async def revoke(self, lease: int) -> None: ...
