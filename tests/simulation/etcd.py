"""A model of etcd: a map with revisions, watches and leases, in one process and on virtual time.

Knows: what etcd promises of the calls of `cluster/etcd/port.py`; one script of calls runs here and on real members
(tests/cluster/etcd). Refuses to know: members and their votes; what a client sees of those is a `Fate`.
"""

import bisect
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from braidlog.cluster.etcd.port import (
    Change,
    EtcdAwayError,
    EtcdCompactedError,
    EtcdLeaseError,
    EtcdRefusedError,
    Holds,
    Item,
    Outcome,
    Put,
    Range,
    Reading,
)
from braidlog.model.runtime.runtime import Runtime, Wakeup

T = TypeVar("T")

REQUEST_BYTES_MAX = 1536 * 1024
CALL_SECONDS = 0.001


class Fate(Enum):
    """What becomes of one call."""

    DONE = auto()
    NOT_ARRIVED = auto()
    NOT_ANSWERED = auto()
    """It was done; the client does not hear of it."""
    LATE = auto()
    """The client hears nothing, and it is done when `deliver_late` says so."""


class _Lease(NamedTuple):
    seconds: int
    until: float


class ModelEtcd:
    """The state all clients share."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.revision = 1
        self.compacted = 0
        self._kept: dict[bytes, list[tuple[int, Put | None]]] = {}
        """By key: what it was from which revision on."""
        self._changes: list[Change] = []
        self._leases: dict[int, _Lease] = {}
        self._leases_made = 0
        self._late: list[Callable[[], object]] = []
        self.watches: list[ModelWatch] = []

    def read(self, keys: Range, limit: int, revision: int, *, keys_only: bool) -> Reading:
        self._expire()
        if revision > self.revision:
            raise EtcdRefusedError("required revision is a future revision")
        if revision and revision < self.compacted:
            raise EtcdCompactedError("required revision has been compacted")
        items = [
            Item(key, b"" if keys_only else put.value, at)
            for key in sorted(self._kept)
            if keys.has(key)
            for at, put in [self._at(key, revision or self.revision)]
            if put is not None
        ]
        more = bool(limit) and len(items) > limit
        return Reading(items[: limit or None], self.revision, more)

    def _at(self, key: bytes, revision: int) -> tuple[int, Put | None]:
        versions = self._kept.get(key, [])
        place = bisect.bisect_right(versions, revision, key=lambda version: version[0])
        return versions[place - 1] if place else (0, None)

    def write(self, puts: Sequence[Put], deletes: Sequence[Range], conditions: Sequence[Holds]) -> Outcome:
        self._expire()
        if sum(len(put.key) + len(put.value) for put in puts) > REQUEST_BYTES_MAX:
            raise EtcdRefusedError("request is too large")
        if any(put.lease and put.lease not in self._leases for put in puts):
            raise EtcdLeaseError("requested lease not found")
        for key, value in conditions:
            _, held = self._at(key, self.revision)
            if (held and held.value) != value:
                return Outcome(done=False, revision=self.revision)
        gone = [
            key
            for keys in deletes
            for key in sorted(self._kept)
            if keys.has(key) and self._at(key, self.revision)[1] is not None
        ]
        self._change([(put.key, put) for put in puts] + [(key, None) for key in gone])
        return Outcome(done=True, revision=self.revision)

    def _change(self, changes: Sequence[tuple[bytes, Put | None]]) -> None:
        if not changes:
            return
        self.revision += 1
        for key, put in changes:
            self._kept.setdefault(key, []).append((self.revision, put))
            self._changes.append(Change(key, put.value if put else None, self.revision))
        for watch in list(self.watches):
            watch.wake()

    def changes_after(self, ranges: Sequence[Range], revision: int) -> list[Change]:
        if revision + 1 < self.compacted:
            raise EtcdCompactedError("watch from before what is kept")
        place = bisect.bisect_right(self._changes, revision, key=lambda change: change.revision)
        return [change for change in self._changes[place:] if any(keys.has(change.key) for keys in ranges)]

    def compact(self, revision: int) -> None:
        if revision > self.revision:
            raise EtcdRefusedError("required revision is a future revision")
        if revision <= self.compacted:
            return
        self.compacted = revision
        for key, versions in list(self._kept.items()):
            place = bisect.bisect_right(versions, revision, key=lambda version: version[0])
            kept = versions[max(place - 1, 0) :]
            if kept[0][1] is None and kept[0][0] <= revision:
                kept = kept[1:]
            if kept:
                self._kept[key] = kept
            else:
                del self._kept[key]
        self._changes = [change for change in self._changes if change.revision >= revision]

    def grant(self, seconds: int) -> int:
        self._leases_made += 1
        self._leases[self._leases_made] = _Lease(seconds, self.runtime.monotonic() + seconds)
        return self._leases_made

    def keep_alive(self, lease: int) -> bool:
        self._expire()
        if lease not in self._leases:
            return False
        seconds = self._leases[lease].seconds
        self._leases[lease] = _Lease(seconds, self.runtime.monotonic() + seconds)
        return True

    def revoke(self, lease: int) -> None:
        if self._leases.pop(lease, None) is not None:
            self._change([(key, None) for key in sorted(self._kept) if self._holds(key, lease)])

    def _holds(self, key: bytes, lease: int) -> bool:
        put = self._at(key, self.revision)[1]
        return put is not None and put.lease == lease

    def _expire(self) -> None:
        now = self.runtime.monotonic()
        for lease in [each for each, kept in self._leases.items() if kept.until <= now]:
            self.revoke(lease)

    def later(self, work: Callable[[], object]) -> None:
        self._late.append(work)

    def deliver_late(self) -> None:
        """What went unanswered and was still on its way arrives now."""
        late, self._late = self._late, []
        for work in late:
            work()


class ModelClient:
    """`Etcd`, as one node sees it. `fate` is asked at every call."""

    def __init__(
        self,
        etcd: ModelEtcd,
        fate: Callable[[str], Fate] = lambda _: Fate.DONE,
        *,
        runtime: Runtime | None = None,
        seconds: Callable[[], float] = lambda: CALL_SECONDS,
    ) -> None:
        self.etcd = etcd
        self.fate = fate
        self._runtime = etcd.runtime if runtime is None else runtime
        self._seconds = seconds

    async def _call(self, name: str, work: Callable[[], T]) -> T:
        """There and back: others go first in between."""
        fate = self.fate(name)
        await self._runtime.wakeup().wait(self._seconds())
        if fate is Fate.NOT_ARRIVED:
            raise EtcdAwayError("nobody answers")
        if fate is Fate.LATE:
            self.etcd.later(work)
            raise EtcdAwayError("nobody answers")
        result = work()
        await self._runtime.wakeup().wait(self._seconds())
        if fate is Fate.NOT_ANSWERED:
            raise EtcdAwayError("nobody answers")
        return result

    async def read(self, keys: Range, *, limit: int = 0, revision: int = 0, keys_only: bool = False) -> Reading:
        return await self._call("read", lambda: self.etcd.read(keys, limit, revision, keys_only=keys_only))

    async def write(
        self, puts: Sequence[Put], *, deletes: Sequence[Range] = (), conditions: Sequence[Holds] = ()
    ) -> Outcome:
        return await self._call("write", lambda: self.etcd.write(puts, deletes, conditions))

    async def watch(self, ranges: Sequence[Range], after: int) -> "ModelWatch":
        return await self._call("watch", lambda: ModelWatch(self.etcd, ranges, after, self._runtime, self._seconds))

    async def compact(self, revision: int) -> None:
        await self._call("compact", lambda: self.etcd.compact(revision))

    async def grant(self, seconds: int) -> int:
        return await self._call("grant", lambda: self.etcd.grant(seconds))

    async def keep_alive(self, lease: int) -> bool:
        return await self._call("keep_alive", lambda: self.etcd.keep_alive(lease))

    async def revoke(self, lease: int) -> None:
        await self._call("revoke", lambda: self.etcd.revoke(lease))


class ModelWatch:
    """`Watch`. It can be made deaf, as a watch at a member without a quorum is."""

    def __init__(
        self, etcd: ModelEtcd, ranges: Sequence[Range], after: int, runtime: Runtime, seconds: Callable[[], float]
    ) -> None:
        self._etcd = etcd
        self._runtime = runtime
        self._seconds = seconds
        self._ranges = ranges
        self._after = after
        self._wakeup: Wakeup | None = None
        self._is_over = False
        self.is_deaf = False
        etcd.watches.append(self)

    async def next(self) -> Sequence[Change]:
        while not self._is_over:
            changes = [] if self.is_deaf else self._etcd.changes_after(self._ranges, self._after)
            if changes:
                self._after = changes[-1].revision
                return changes
            self._wakeup = self._runtime.wakeup()
            await self._wakeup.wait(3600.0)
            await self._runtime.wakeup().wait(self._seconds())
        raise EtcdAwayError("the watch was stopped")

    def wake(self) -> None:
        if self._wakeup is not None and not self.is_deaf:
            self._wakeup.wake()

    def stop(self) -> None:
        self._is_over = True
        if self in self._etcd.watches:
            self._etcd.watches.remove(self)
        if self._wakeup is not None:
            self._wakeup.wake()
