"""Registers a node in its cluster: at its start, and again after it was fenced.

Invariants: the node acts on no metadata before `register` returns. A number belongs to one name, and to one folder at
a time.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from braidlog.cluster.metadata.events import Event, RegisterNode
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.replication.control.incarnation import Life, last_known_incarnation
from braidlog.storage.files import Disk
from braidlog.storage.two_copy_file import TwoCopyFile, load_newest

MAGIC: Final = b"BRAIDRUN"
START_IDS_MAX: Final = 64
"""Limit of unconfirmed start ids. If one is forgotten, the folder counts as a copy, which is safe."""


class StartRecord(msgspec.Struct, frozen=True):
    remembers: int = 0
    start_ids: tuple[str, ...] = ()
    """Start ids of registrations without a confirmed outcome."""
    stopped_cleanly: bool = False
    """Whether the node stopped cleanly and has written nothing since."""

    def with_start_id(self, start_id: str) -> "StartRecord":
        return msgspec.structs.replace(self, start_ids=(*self.start_ids, start_id)[-START_IDS_MAX:])


class StartFile:
    """The files `starts.a` and `starts.b` of a data folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._slots = TwoCopyFile(disk, folder, "starts", MAGIC)

    def load(self) -> StartRecord:
        """Load the record; empty if the folder never belonged to a cluster."""
        if self._slots.was_never_saved():
            return StartRecord()
        try:
            return msgspec.json.decode(load_newest(self._slots, "starts.a", read_only=False), type=StartRecord)
        except msgspec.MsgspecError as error:
            raise StorageFault(f"starts.a does not decode: {error}") from error

    def save(self, starts: StartRecord) -> None:
        self._slots.save(msgspec.json.encode(starts))


log = logging.getLogger("braidlog.cluster")

AGAIN_SECONDS: Final = 0.05
FENCED_AGAIN_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 16.0
"""A node that is fenced again within `FENCED_AGAIN_SECONDS` waits before it registers, each time twice as long."""
SAID_SECONDS: Final = 10.0
"""How often a node that cannot register logs the reason."""


class NodeDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A node's description of itself."""

    number: int
    name: str
    folder_id: str
    boot_id: str
    addresses: dict[str, tuple[str, int]] = {}
    """Host and port of each listener by protocol name, and of the peer port."""
    rack: str = ""


class Registrar:
    """Call `register` at the start and whenever `is_fenced`; stop the node when `is_replaced`."""

    def __init__(
        self,
        metadata: Metadata,
        runtime: Runtime,
        file: StartFile,
        described: NodeDescription,
        new_id: Callable[[], str],
    ) -> None:
        self._metadata = metadata
        self._runtime = runtime
        self._file = file
        self._starts = file.load()
        self._described = described
        self._new_id = new_id
        self._start_id = ""
        self._is_registering = False
        self._fenced_at: float | None = None
        self._pause = 0.0
        self.incarnation: int | None = None

    async def register(self, damaged: Sequence[str] = ()) -> int:
        """Register, and retry until the incarnation is known. `damaged` lists the partitions with a damaged copy."""
        self._is_registering = True
        if self.incarnation is not None and (pause := self._next_pause()):
            log.warning("node %d: registration delayed, fenced again, pause=%g s", self._described.number, pause)
            await self._runtime.wakeup().wait(pause)
        self._start_id = self._new_id()
        await self._keep(self._starts.with_start_id(self._start_id))
        incarnation = await self._registered(tuple(damaged))
        await self._keep(StartRecord(remembers=incarnation))
        self.incarnation = incarnation
        self._is_registering = False
        return incarnation

    def _next_pause(self) -> float:
        """Delay in seconds before the next registration. Each incarnation ends leaderships and shrinks in-sync sets,
        so flapping nodes are slowed down.
        """
        last, self._fenced_at = self._fenced_at, self._runtime.monotonic()
        is_again = last is not None and self._fenced_at - last < FENCED_AGAIN_SECONDS
        self._pause = min(max(2 * self._pause, PAUSE_SECONDS), PAUSE_SECONDS_MAX) if is_again else 0.0
        return self._pause

    async def _registered(self, damaged: tuple[str, ...]) -> int:
        found = 0

        def decide(image: Image) -> Sequence[Event]:
            nonlocal found
            member = image.cluster.member(self._described.number)
            if member is not None and member.registered.life.start_id == self._start_id and not member.is_fenced:
                found = member.registered.incarnation  # the answer was lost, but the entry was written
                return []
            found = self._metadata.seq + 1
            return [self._event(image, found, damaged)]

        said = self._runtime.monotonic()
        while True:
            try:
                await self._metadata.change(decide)
            except BrokerError as error:
                if error.reason is not Reason.UNAVAILABLE:
                    raise
                if self._runtime.monotonic() - said >= SAID_SECONDS:
                    said = self._runtime.monotonic()
                    log.warning("node %d is not registered yet; retrying: %s", self._described.number, error)
                await self._runtime.wakeup().wait(AGAIN_SECONDS)
            else:
                return found

    def _event(self, image: Image, incarnation: int, damaged: tuple[str, ...]) -> RegisterNode:
        said, starts = self._described, self._starts
        member = image.cluster.member(said.number)
        if member is not None and member.name != said.name:
            raise BrokerError(
                Reason.VERSION_CONFLICT,
                f"node {said.name!r} maps to number {said.number}, which belongs to {member.name!r}: a node's name is "
                "its number; set `node` to one that no other node has",
            )
        life = Life(
            boot_id=said.boot_id,
            folder_id=said.folder_id,
            remembers=last_known_incarnation(member.registered if member else None, starts.remembers, starts.start_ids),
            stopped_cleanly=starts.stopped_cleanly,
            start_id=self._start_id,
        )
        return RegisterNode(
            node=said.number,
            incarnation=incarnation,
            life=life,
            damaged=damaged,
            addresses=said.addresses,
            rack=said.rack,
            name=said.name,
        )

    async def _keep(self, starts: StartRecord) -> None:
        await self._runtime.blocking(lambda: self._file.save(starts))
        self._starts = starts

    @property
    def is_fenced(self) -> bool:
        """Whether this node was fenced: it leads nothing and counts for nothing until it registers again."""
        member = self._metadata.image.cluster.member(self._described.number)
        return not self._is_registering and self.incarnation is not None and member is not None and member.is_fenced

    @property
    def is_replaced(self) -> bool:
        """Whether another process has registered under this number since."""
        member = self._metadata.image.cluster.member(self._described.number)
        if self._is_registering or self.incarnation is None or member is None:
            return False
        return member.registered.incarnation > self.incarnation

    async def stopped_cleanly(self) -> None:
        """Record a clean stop: everything is closed and synced, and nothing is written afterwards."""
        if self.incarnation is not None and not self._is_registering:
            await self._keep(msgspec.structs.replace(self._starts, stopped_cleanly=True))
