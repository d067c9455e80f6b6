"""The metadata of a node that keeps it in etcd: reached, checked and opened at the start, let go at the end.

Knows: the order: member, versions, whose folder this is, number, log. Refuses to know: what the metadata says.
Invariants: a folder that has followed a cluster's metadata follows no other, and never its own again; one that has its
own is not moved. Every step can be repeated, so a start that fails half-way is followed by one that works.

A new folder joins the cluster that it finds in etcd, or begins one.
"""

import asyncio
import contextlib
import logging
import ssl
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from braidlog.broker.services import Services
from braidlog.cluster.etcd import images
from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.leases import LeaseMessage, Leases
from braidlog.cluster.etcd.moving import is_moving
from braidlog.cluster.etcd.port import Etcd, EtcdAwayError, EtcdError
from braidlog.cluster.etcd.position import Position, PositionFile
from braidlog.cluster.etcd.presence import Life, Presence
from braidlog.cluster.etcd.store import EtcdStore
from braidlog.cluster.events import Event
from braidlog.cluster.image import Image
from braidlog.cluster.membership import Membership
from braidlog.cluster.store import Conflict
from braidlog.coordinator.producer_ids import ProducerIds
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.report import EtcdReport
from braidlog.model.world import World
from braidlog.partition.reconciler import Reconciler
from braidlog.replication.controller import LeaseLost
from braidlog.server.etcd.gateway import Gateway
from braidlog.server.etcd.member import Member, find_program
from braidlog.server.etcd.settings import ClusterConfig
from braidlog.storage.folder import DataFolder
from braidlog.tasks import Tasks

log = logging.getLogger("braidlog.metadata")
T = TypeVar("T")

START_SECONDS_MAX: Final = 60.0
"""Members that are started at the same time as the node may take so long to elect one of them."""
AGAIN_SECONDS: Final = 0.2
SAY_SECONDS: Final = 10.0
JOIN_SECONDS_MAX: Final = 600.0
"""A node that begins no cluster waits so long for one."""
RESERVE_SECONDS: Final = 1.0
MEMBER_FOLDER: Final = "etcd"


class TaskedStore(EtcdStore):
    """Proposals in tasks of their own: a handler has none, and one whose client has gone may be ended where it waits.
    """

    def __init__(self, tasks: Tasks, etcd: Etcd, world: World, **options: Any) -> None:  # noqa: ANN401 - the base's own
        super().__init__(etcd, world, **options)
        self._tasks = tasks

    async def propose(self, events: Sequence[Event], after: int) -> int | Conflict:
        return await in_task(self._tasks, super().propose(events, after))

    async def save(self, image: Image, seq: int) -> None:
        await in_task(self._tasks, super().save(image, seq))


async def in_task(tasks: Tasks, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, for a caller that may have no task and may end before it."""
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            result = await work
            if not ended.cancelled():  # else who waited for it has gone
                ended.set_result(result)
        except (BrokerError, StorageFault) as error:
            if not ended.cancelled():
                ended.set_exception(error)
        finally:
            ended.cancel()  # if neither: the node stops

    tasks.spawn(run(), "metadata-change")
    return await ended


async def open_cluster(
    config: ClusterConfig, folder: DataFolder, world: World, node: str, tasks: Tasks
) -> "ClusterStore | None":
    """None: a node that keeps its own metadata."""
    if not config.etcd:
        if folder.identity.cluster:
            raise BrokerError(
                Reason.INVALID_SETTING,
                f"{folder.path} follows the metadata of cluster {folder.identity.cluster}, which is in etcd: set "
                "[cluster] etcd",
            )
        return None
    cluster = ClusterStore(config, folder, world, node, tasks)
    try:
        await cluster.open()
    except EtcdError as error:
        await cluster.stop()
        raise BrokerError(Reason.UNAVAILABLE, f"the metadata cannot be reached: {error}") from error
    except BaseException:
        await cluster.stop()
        raise
    return cluster


class ClusterStore:
    """`await open()`, then `run`; `await stop()` as the last thing a node does."""

    def __init__(self, config: ClusterConfig, folder: DataFolder, world: World, node: str, tasks: Tasks) -> None:
        self._config = config
        self._folder = folder
        self._world = world
        self._node = node
        self._tasks = tasks
        self._member: Member | None = None
        self._keeping_member: asyncio.Task[None] | None = None
        self._gateway: Gateway | None = None
        self._tls: ssl.SSLContext | None = None
        self._presence: Presence | None = None
        self._store: EtcdStore | None = None
        self._services: Services | None = None
        """What follows the log; None before `run`."""
        self._has_arrived = asyncio.Event()

    @property
    def store(self) -> EtcdStore:
        assert self._store is not None
        return self._store

    async def open(self) -> None:
        config, world = self._config, self._world
        position, known = self._open_position()
        tls = self._tls = config.tls()
        if config.is_embedded:
            settings, folder = config.member(self._node), Path(self._folder.path) / MEMBER_FOLDER
            self._member = Member(settings, folder, find_program(), tls)
            await self._member.start()
            log.info("etcd runs beside this node")
            self._keeping_member = self._tasks.spawn(self._member.keep_running(), "etcd-member")
        gateway = self._gateway = Gateway(config.gateway(), tls)
        await until_answered(gateway.check_versions)
        store = TaskedStore(
            self._tasks,
            gateway,
            world,
            prefix=config.prefix,
            node=self._node,
            new_nonce=lambda: uuid.uuid4().hex,
            remember=lambda reached: world.blocking(lambda: position.save(reached)),
            arrived=self._take_arrived,
        )
        if known.seq == 0:  # else it was begun: one that is not there any more is not begun anew
            begin = partial(store.found_cluster, known.cluster)
            known = self._joined(await (self._begun_by_others(gateway) if config.join else until_answered(begin)))
        life = Life(self._folder.identity.folder_id, uuid.uuid4().hex)
        keys = Keys(config.prefix)
        self._presence = Presence(gateway, world, keys, node=self._node, life=life, seconds=config.lease_seconds)
        await until_answered(self._presence.take)
        await until_answered(lambda: store.open(known))
        log.info("metadata of cluster %s in etcd: entry %d", known.cluster, store.position.seq)
        self._store = store

    def _open_position(self) -> tuple[PositionFile, Position]:
        """Whose metadata this folder follows. A new one chooses a cluster, durably, before it begins that one in etcd.
        """
        folder = self._folder
        position = PositionFile(folder.disk, folder.path, self._node)
        known = position.load()
        if is_moving(known):
            raise BrokerError(
                Reason.VERSION_CONFLICT,
                f"{folder.path} was being moved into cluster {known.cluster if known else ''}, and the move did not "
                "end: run "
                "`braid cluster init` again",
            )
        if known is None and folder.identity.cluster:
            raise BrokerError(
                Reason.FOLDER_NOT_FOUND,
                f"{folder.path} belongs to cluster {folder.identity.cluster}, and cluster.a and cluster.b, which say "
                "how far it "
                "has come, are lost: restore them from a backup",
            )
        if not folder.identity.cluster and folder.topics():
            raise BrokerError(
                Reason.VERSION_CONFLICT,
                f"{folder.path} has topics and keeps its metadata itself, and cannot be moved into etcd by a start: "
                "run "
                "`braid cluster init`, or start with an empty data_dir",
            )
        if known is None:
            known = Position(uuid.uuid4().hex, 0, "")
            position.save(known)
        return position, known

    def _joined(self, found: str) -> Position:
        """The cluster that etcd holds, begun by this folder or by another, is this folder's from now on."""
        folder = self._folder
        if folder.identity.cluster not in ("", found):
            raise BrokerError(
                Reason.VERSION_CONFLICT,
                f"etcd holds cluster {found} at prefix {self._config.prefix!r}, and {folder.path} belongs to "
                f"{folder.identity.cluster}: check the addresses of etcd and the prefix",
            )
        if not folder.identity.cluster:
            folder.join_cluster(found)
        return Position(found, 0, "")

    async def _begun_by_others(self, gateway: Gateway) -> str:
        """The cluster that some other node begins, or has begun."""
        keys, loop = Keys(self._config.prefix), asyncio.get_running_loop()
        until = loop.time() + JOIN_SECONDS_MAX
        say_at = loop.time()
        while (found := await until_answered(partial(images.read_head, gateway, keys))) is None:
            if loop.time() >= until:
                raise BrokerError(
                    Reason.UNAVAILABLE,
                    f"no cluster was begun at prefix {self._config.prefix!r}, and this node begins none "
                    "(cluster.join): run "
                    "`braid cluster init` on the one that has topics, or start one without cluster.join",
                )
            if loop.time() >= say_at:
                log.warning("waiting for another node to begin a cluster at prefix %r", self._config.prefix)
                say_at = loop.time() + SAY_SECONDS
            await asyncio.sleep(AGAIN_SECONDS)
        return found[0].cluster

    # -- while it runs -----------------------------------------------------------------------------------------

    async def run(self, services: Services) -> None:
        """Note what the start has made; from then on know what comes into the log, by others or late."""
        assert self._presence is not None
        self._services = services
        self._tasks.spawn(self._presence.keep(), "presence")
        await until_answered(services.reconciler.note_made)
        await until_answered(services.producer_ids.fill_reserve)
        self._tasks.every(RESERVE_SECONDS, partial(_filled, services.producer_ids), "producer-ids")
        self._tasks.spawn(self.store.follow_changes(), "metadata")
        self._tasks.spawn(self.store.check_watch(), "metadata-tick")

    def _take_arrived(self) -> None:
        if (services := self._services) is not None:
            services.metadata.catch_up()
            services.rules.apply()
            services.quota_changes.apply()
            self._has_arrived.set()

    async def follow(self, reconciler: Reconciler) -> None:
        """Carry out what comes into the log, once all partitions are open: what a start opens is not opened by this as
        well.
        """
        while True:
            await self._has_arrived.wait()
            self._has_arrived.clear()
            try:
                faults = await reconciler.follow()
            except BrokerError as error:  # a start, or a change, has taken long: it is still to be done
                log.warning("the folder does not follow the metadata yet: %s", error)
                self._has_arrived.set()
                continue
            for name, fault in faults.items():
                log.error("topic %r cannot follow the metadata: %s", name, fault)

    def leases(
        self, members: Callable[[], Membership], told: Callable[[LeaseMessage], None], lost: Callable[[LeaseLost], None]
    ) -> Leases:
        """Whose lease lives, for failure detection and for the controller."""
        assert self._gateway is not None
        return Leases(self._gateway, self._world, Keys(self._config.prefix), members, told, lost)

    def report(self) -> EtcdReport:
        gateway, store = self._gateway, self._store
        if gateway is None or store is None:
            return EtcdReport(is_up=False)
        return EtcdReport(store.outage is None, store.outages, list(gateway.seconds.counts), gateway.seconds.total)

    def outage(self) -> str:
        """In words, for people; empty while etcd answers."""
        outage = None if self._store is None else self._store.outage
        return "" if outage is None else outage.report(self._world.monotonic())

    def member_trouble(self) -> str:
        """In words, for people; empty while the member beside this node runs, or if there is none."""
        return "" if self._member is None else self._member.trouble

    def reload_certificate(self) -> None:
        """The one that is shown to etcd; an embedded member reads its own for each connection."""
        if self._tls is None:
            return
        try:
            self._config.read_tls_again(self._tls)
        except (BrokerError, OSError) as error:
            log.error("etcd is shown the certificate as before: %s", error)  # noqa: TRY400
        else:
            log.info("the certificate for etcd was read again")

    async def remove_member(self, node: str) -> None:
        """Remove the embedded member of a node that was removed: while it counts, the others need it for their
        majority.
        """
        if self._gateway is not None and self._config.is_embedded:
            await in_task(self._tasks, self._remove_member(self._gateway, node))

    async def _remove_member(self, gateway: Gateway, node: str) -> None:
        member = "ID"
        try:
            for each in await gateway.members():
                if each.name == node:
                    member = f"{each.ID:x}"
                    await gateway.remove_member(each.ID)
                    log.warning("etcd member %s removed: its node was removed", node)
        except EtcdError as error:
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"node {node} is removed, its etcd member may not be: {error}; see `braid doctor`, then run: "
                f"etcdctl member remove {member}",
            ) from error

    def leave_member(self) -> None:
        """From now on it is not started again: the node stops."""
        if self._keeping_member is not None:
            self._keeping_member.cancel()

    async def stop(self) -> None:
        """The number is free at once; a member goes last, when nothing is written any more."""
        if self._presence is not None:
            with contextlib.suppress(EtcdError):  # then its lease runs out
                await self._presence.leave()
        if self._gateway is not None:
            self._gateway.close()
        if self._keeping_member is not None:
            self._keeping_member.cancel()
            await asyncio.wait([self._keeping_member])
        if self._member is not None:
            await self._member.stop()


async def _filled(ids: ProducerIds) -> None:
    with contextlib.suppress(BrokerError):  # etcd is away: this is what the reserve is for
        await ids.fill_reserve()


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Until a member answers: members may be starting, or electing one of them. `call` may be repeated."""
    loop = asyncio.get_running_loop()
    until = loop.time() + START_SECONDS_MAX
    say_at = loop.time()
    while True:
        try:
            return await call()
        except (EtcdAwayError, BrokerError) as error:
            is_final = isinstance(error, BrokerError) and error.reason is not Reason.UNAVAILABLE
            if is_final or loop.time() >= until:
                raise
            if loop.time() >= say_at:
                log.warning("waiting for etcd, up to %.0f s more: %s", until - loop.time(), error)
                say_at = loop.time() + SAY_SECONDS
        await asyncio.sleep(AGAIN_SECONDS)
