"""Announces that a node is alive: a key under a lease, which expires when the node dies.

Invariants: a number belongs to one folder while that folder's node is alive. Of two processes over copies of one
folder the later one keeps the number, and the other stops. An unreachable etcd proves nothing: the node rewrites the
key when etcd answers. A node that renews its lease late gets a longer lease for a while.
"""

import contextlib
import math
from typing import Final

import msgspec

from braidlog.cluster.etcd.entries import Keys, one
from braidlog.cluster.etcd.port import Etcd, EtcdError, EtcdLeaseError, Holds, Put
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.runtime import Runtime
from braidlog.replication.control.swim import Lateness

LEASE_SECONDS: Final = 3
RENEWALS: Final = 3
"""Renewals per lease time."""
LEASE_FACTOR_MAX: Final = 10
"""Lateness multiplies a lease by at most this factor."""
TRIES_MAX: Final = 10


class Life(msgspec.Struct, frozen=True):
    """Value of the key: the data folder and one start of it."""

    folder: str
    start: str


class Presence:
    """Call `take` before the node serves, run `keep` as a task, call `leave` at the end."""

    def __init__(
        self, etcd: Etcd, runtime: Runtime, keys: Keys, *, node: str, life: Life, seconds: int = LEASE_SECONDS
    ) -> None:
        self._etcd = etcd
        self._runtime = runtime
        self._node = node
        self._life = life
        self._key = keys.life(node)
        self._lease = self._granted = 0
        self._seconds = seconds
        self._late = Lateness()
        self._is_over = False

    async def register(self) -> None:
        """Claim the node's number. Fails while a node with another folder holds it."""
        for _ in range(TRIES_MAX):
            life, value = await self._held()
            if life is not None and life.folder != self._life.folder:
                raise BrokerError(
                    Reason.VERSION_CONFLICT,
                    f"node {self._node!r} already runs with another data folder ({life.folder}): set another "
                    "`node` for this one, or stop the other",
                )
            if await self._write(value):
                return
        raise BrokerError(
            Reason.UNAVAILABLE,
            f"other processes keep claiming node {self._node!r}: check for duplicate names",
        )

    async def _held(self) -> tuple[Life | None, bytes | None]:
        """The current holder and the key's value. A value that no node wrote is overwritten."""
        found = (await self._etcd.read(one(self._key))).items
        if not found:
            return None, None
        try:
            return msgspec.json.decode(found[0].value, type=Life), found[0].value
        except msgspec.MsgspecError:
            return None, found[0].value

    async def _write(self, before: bytes | None) -> bool:
        self._granted = self._wanted()
        self._lease = await self._etcd.grant(self._granted)
        value = msgspec.json.encode(self._life)
        outcome = await self._etcd.write([Put(self._key, value, self._lease)], conditions=[Holds(self._key, before)])
        return outcome.done

    async def keep_registered(self) -> None:
        """Renew the lease until `leave`. Raises if another process claimed the number: two processes on one node's
        partitions would diverge.
        """
        renewed, pause = self._runtime.monotonic(), self._seconds / RENEWALS
        while not self._is_over:
            await self._runtime.wakeup().wait(pause)
            began = self._runtime.monotonic()
            self._late = self._late.with_sample(int((began - renewed - pause) * 1000), self._now_ms())
            with contextlib.suppress(EtcdError):  # the store reports the outage
                await self._renew()
                renewed = began

    def _now_ms(self) -> int:
        return int(self._runtime.monotonic() * 1000)

    def _wanted(self) -> int:
        """Lease time in seconds, including the lateness of recent renewals."""
        late_seconds = math.ceil(self._late.at(self._now_ms()) / 1000)
        return min(self._seconds + RENEWALS * late_seconds, LEASE_FACTOR_MAX * self._seconds)

    async def _renew(self) -> None:
        is_there = False
        with contextlib.suppress(EtcdLeaseError):
            is_there = await self._etcd.keep_alive(self._lease)
        life, value = await self._held()
        if life is not None and life != self._life:
            raise BrokerError(
                Reason.VERSION_CONFLICT,
                f"node {self._node!r} was started by another process ({life.folder}); stopping this one",
            )
        if not self._is_over and (not is_there or life is None or self._granted != self._wanted()):
            await self._write(value)

    async def leave(self) -> None:
        self._is_over = True
        await self._etcd.revoke(self._lease)
