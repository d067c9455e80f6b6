"""One script of calls, for the model and for real members: both must answer the same."""

from collections.abc import Awaitable

from braidlog.cluster.etcd.entries import one
from braidlog.cluster.etcd.port import Etcd, EtcdError, Holds, Put, Range, Watch

A, B, C = b"/s/a", b"/s/b", b"/s/c"
ALL = Range(b"/s/", b"/s0")


class Script:
    """Revisions are given as what they are beyond the first one: a real member has had other guests."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._base = 0
        self.answers: list[object] = []

    async def play(self) -> list[object]:
        await self._etcd.write([], deletes=[ALL])
        self._base = (await self._etcd.read(ALL)).revision
        await self._conditions()
        await self._ranges()
        await self._watches()
        await self._leases()
        await self._compaction()
        await self._refusals()
        return self.answers

    def tell(self, *words: object) -> None:
        self.answers.append(words)

    async def read(self, what: str, keys: Range = ALL, *, limit: int = 0, at: int = 0, keys_only: bool = False) -> None:
        revision = at and at + self._base
        try:
            reading = await self._etcd.read(keys, limit=limit, revision=revision, keys_only=keys_only)
        except EtcdError as error:
            self.tell(what, type(error).__name__)
            return
        items = [(key, value, revision - self._base) for key, value, revision in reading.items]
        self.tell(what, items, reading.revision - self._base, reading.more)

    async def write(self, what: str, *puts: Put, deletes: Range | None = None, if_: Holds | None = None) -> None:
        conditions = [if_] if if_ else []
        try:
            outcome = await self._etcd.write(puts, deletes=[deletes] if deletes else [], conditions=conditions)
        except EtcdError as error:
            self.tell(what, type(error).__name__)
            return
        self.tell(what, outcome.done, outcome.revision - self._base)

    async def _conditions(self) -> None:
        await self.write("absent, so written", Put(A, b"1"), if_=Holds(A, None))
        await self.write("there, so refused", Put(A, b"2"), if_=Holds(A, None))
        await self.write("has that value, so written", Put(A, b"2"), Put(B, b"x"), if_=Holds(A, b"1"))
        await self.write("has another, so refused", Put(A, b"3"), if_=Holds(A, b"1"))
        await self.write("a delete", deletes=one(B))
        await self.write("a delete of nothing", deletes=one(B))
        await self.write("absent has no value", Put(B, b"y"), if_=Holds(B, b""))
        await self.write("deleted is absent", Put(B, b"y"), if_=Holds(B, None))

    async def _ranges(self) -> None:
        await self.read("all")
        await self.read("keys", keys_only=True)
        await self.read("one of two", limit=1)
        await self.read("as it was", at=2)
        await self.read("in the future", at=1000)
        await self.read("none", one(C))

    async def _watches(self) -> None:
        watch = await self._etcd.watch([one(A), one(C)], self._base)
        await self._changes("from the past", watch, 2)
        await self.write("not watched", Put(B, b"z"))
        await self.write("watched", Put(C, b"1"))
        await self._changes("as it happens", watch, 1)
        await self.write("gone", deletes=one(C))
        await self._changes("a deletion", watch, 1)
        watch.stop()
        await self._fails("a stopped watch", watch.next())

    async def _changes(self, what: str, watch: Watch, count: int) -> None:
        """Members may send several changes in one message or each alone."""
        changes: list[tuple[bytes, bytes | None, int]] = []
        while len(changes) < count:
            changes += [(key, value, revision - self._base) for key, value, revision in await watch.next()]
        self.tell(what, changes)

    async def _fails(self, what: str, call: Awaitable[object]) -> None:
        try:
            await call
        except EtcdError as error:
            self.tell(what, type(error).__name__)
        else:
            self.tell(what, "no error")

    async def _leases(self) -> None:
        lease = await self._etcd.grant(60)
        await self.write("under a lease", Put(C, b"here", lease))
        self.tell("kept alive", await self._etcd.keep_alive(lease))
        await self._etcd.revoke(lease)
        await self.read("gone with its lease", one(C))
        self.tell("kept alive", await self._etcd.keep_alive(lease))
        await self._etcd.revoke(lease)
        await self.write("under no lease", Put(C, b"here", lease))

    async def _compaction(self) -> None:
        now = (await self._etcd.read(ALL)).revision
        await self._etcd.compact(now)
        await self._etcd.compact(now)
        await self.read("before what is kept", at=2)
        await self.read("at the first that is kept", at=now - self._base)
        watch = await self._etcd.watch([ALL], self._base)
        await self._fails("a watch from before", watch.next())
        await self._fails("compaction of the future", self._etcd.compact(now + 1000))

    async def _refusals(self) -> None:
        await self.write("too large", Put(A, bytes(1600 * 1024)))
        await self.write("the end", deletes=ALL)
