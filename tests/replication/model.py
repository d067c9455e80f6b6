"""Three replicas of one partition, driven by the real `step`, with everything around them as small as it can be.

The world is one value: three nodes (alive or not, their records, their `Replica`), the metadata since the entry that the
slowest node has applied, and the messages under way. `successors` gives every world that can come next: answers arrive in any
order, late, or never; nodes are killed, lose power, lose their disk, are taken for dead though they live, apply metadata late.
After each step the promises are checked; `Broken` says which one does not hold.

So that all worlds can be visited, nothing is late for free but answers to the nodes in `Bounds.slow`, changes of the in-sync
set and, with `lazy_syncs`, syncs; whatever else is late, lost or doubled is one of the `faults`, of which a run has so many.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from braidlog.replication import assignment as sets
from braidlog.replication import follower, leader, replica, replica_state
from braidlog.replication.assignment import Assignment, Node
from braidlog.replication.control import election
from braidlog.replication.control import incarnation as registration
from braidlog.replication.log_summary import LogSummary
from braidlog.replication.messages import (
    Append,
    Assigned,
    Batch,
    ChangeRefused,
    Diverging,
    EpochStarted,
    Fetch,
    Fetched,
    Message,
    ReadIndex,
    Refused,
    ResetLog,
    Synced,
    Tick,
)
from braidlog.replication.ready import (
    BeginEpoch,
    Done,
    ProposeChange,
    Ready,
    ResetLogTo,
    Respond,
    Truncate,
    Write,
)
from braidlog.replication.replica_state import LAG_MS_MAX, QUIET_WAIT_MS_MAX, Follower, Leader, Replica

NODES = (1, 2, 3)
MIN_IN_SYNC = 2
Record = tuple[int, int]
"""(epoch, value): a log's record, and what is unique about it."""
FAULTS = frozenset(("kill", "power", "wipe", "accuse", "lag", "late", "twice"))
WEAK = 100
"""Tokens from here on are of writers who asked for their leader's promise only."""
READ = 200
"""Tokens from here on are of readers."""
LATE = ((1,), (2,), (3,), (1, 2), (1, 3), (2, 3))
Label = tuple[object, ...]
Sent = Fetch | Fetched | Diverging | ResetLog | Refused | ProposeChange


class Broken(Exception):  # noqa: N818 - a promise that does not hold
    """A promise was broken."""


class Bounds(NamedTuple):
    """How far the model goes."""

    records: int = 3
    epochs: int = 3
    faults: int = 2
    flush_on_ack: bool = True
    kinds: tuple[str, ...] = ("kill", "power", "wipe", "accuse", "lag", "late", "twice", "deaf")
    first_in_sync: tuple[int, ...] = NODES
    allows_unclean: bool = False
    lazy_syncs: bool = False
    """Whether a sync is an event of its own; else it comes with the write."""
    acks_one: bool = False
    """Whether there are also records that only their leader promises."""
    reads: int = 0
    """How many times somebody reads the latest."""
    slow: tuple[int, ...] = NODES
    """Followers that may wait for any answer as long as it takes; the others are answered at once."""


class Host(NamedTuple):
    """A node: its process, and what of it survives."""

    alive: bool
    records: tuple[Record, ...]
    replica: Replica
    applied: int
    """Which entry of `Runtime.entries` it has applied."""
    is_deaf: bool = False
    """It applies metadata later than the others: one entry at a time, as events of their own, until it has caught up."""
    boot: int = 0
    folder: int = 0


class Entry(NamedTuple):
    """The metadata as of one entry."""

    assignment: Assignment
    nodes: tuple[Node, ...]

    def registered(self) -> dict[int, Node]:
        return dict(zip(NODES, self.nodes, strict=True))


class Runtime(NamedTuple):
    hosts: tuple[Host, ...]
    entries: tuple[Entry, ...]
    soup: frozenset[Sent]
    faults: int
    written: int
    lives: tuple[registration.Registration, ...]
    """How each node last registered."""
    promised: tuple[Record, ...] = ()
    """All that was acknowledged or read."""
    leaders: tuple[tuple[int, int, int], ...] = ()
    """(epoch, node, incarnation) of everyone who led."""
    emptied: tuple[int, ...] = ()
    """Who has lost records with its power or its disk."""
    reads: tuple[int, ...] = ()
    """Of each reader: how much was promised when he asked."""

    @property
    def now(self) -> Entry:
        return self.entries[-1]


def first_world(bounds: Bounds) -> Runtime:
    assignment = Assignment(replicas=NODES, in_sync=bounds.first_in_sync, leader=1)
    entry = Entry(assignment, tuple(Node(incarnation=1) for _ in NODES))
    hosts = tuple(
        Host(True, (), replica_state.opened(node, 1, LogSummary(), 0, flush_on_ack=bounds.flush_on_ack), 0)
        for node in NODES
    )
    lives = tuple(registration.Registration(1, _life(host, 1)) for host in hosts)
    runtime = Runtime(hosts, (entry,), frozenset(), bounds.faults, 0, lives)
    for node in NODES:
        runtime = _told(runtime, node, _as_assigned(runtime, 0))
    return runtime


# ── What can happen ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def successors(runtime: Runtime, bounds: Bounds) -> Iterator[tuple[Label, Runtime]]:
    for label in labels(runtime, bounds):
        after = happen(runtime, label, bounds)
        yield label, after
        if len(after.entries) > 1 or after.now is not runtime.now:
            yield from _with_late_ones(runtime, label, bounds)


def _with_late_ones(runtime: Runtime, label: Label, bounds: Bounds) -> Iterator[tuple[Label, Runtime]]:
    """The same event, of which some nodes hear later."""
    if "deaf" not in bounds.kinds:
        return
    for late in LATE:
        heard = runtime.faults - (label[0] in FAULTS) >= len(late)
        if heard and all(runtime.hosts[node - 1].alive and not runtime.hosts[node - 1].is_deaf for node in late):
            longer = (*label, "unheard by", *late)
            yield longer, happen(runtime, longer, bounds)


def labels(runtime: Runtime, bounds: Bounds) -> Iterator[Label]:
    """Everything that can happen next, by name."""
    for message in sorted(runtime.soup, key=repr):
        yield ("deliver", message)
    for node in NODES:
        yield from (_of_living if runtime.hosts[node - 1].alive else _of_dead)(runtime, node, bounds)
    if runtime.now.assignment.leader is None:
        if _has_room(runtime, election.elect(runtime.now.assignment, runtime.now.registered()), bounds):
            yield ("elect",)
        if bounds.allows_unclean and _may_elect_unclean(runtime, bounds):
            yield ("elect unclean",)
    if runtime.faults:
        yield from _all_faults(runtime, bounds)


def _all_faults(runtime: Runtime, bounds: Bounds) -> Iterator[Label]:
    for node in NODES:
        if runtime.hosts[node - 1].alive:
            yield from _faults(runtime, node, bounds)
    if "twice" in bounds.kinds:
        for message in sorted(runtime.soup, key=repr):
            yield ("twice", message)


def _of_dead(runtime: Runtime, node: int, bounds: Bounds) -> Iterator[Label]:
    if _may_register(runtime, node, bounds):
        yield ("start", node)
    if _may_be_fenced(runtime, node, bounds):
        yield ("fence", node)


def _of_living(runtime: Runtime, node: int, bounds: Bounds) -> Iterator[Label]:
    host = runtime.hosts[node - 1]
    is_out = runtime.now.nodes[node - 1].is_fenced or not _is_registered(runtime, node)
    if is_out and _may_register(runtime, node, bounds):
        yield ("register", node)
    if host.applied < len(runtime.entries) - 1:
        yield ("apply", node)
    log, role = host.replica.log, host.replica.role
    if host.replica.flush_on_ack and log.durable < log.end:
        yield ("sync", node)
    if isinstance(role, Leader) and any(
        each.parked and leader.may_join(host.replica, role, each) for each in role.followers
    ):
        yield ("poll", node)
    if isinstance(role, Leader) and role.has_begun and runtime.written < bounds.records:
        yield ("append", node)
        if bounds.acks_one:
            yield ("write", node)
    if isinstance(role, Leader) and role.has_begun and len(runtime.reads) < bounds.reads:
        yield ("read", node)


def _may_be_fenced(runtime: Runtime, node: int, bounds: Bounds) -> bool:
    return not runtime.now.nodes[node - 1].is_fenced and _has_room(runtime, _fenced(runtime, node), bounds)


def _faults(runtime: Runtime, node: int, bounds: Bounds) -> Iterator[Label]:
    for kind in ("kill", "power", "wipe"):
        if kind in bounds.kinds:
            yield (kind, node)
    if "accuse" in bounds.kinds and _may_be_fenced(runtime, node, bounds):
        yield ("accuse", node)
    role = runtime.hosts[node - 1].replica.role
    if "lag" in bounds.kinds and isinstance(role, Leader) and role.members.pending is None:
        for late in role.members.committed:
            if late != node:
                yield ("lag", node, late)
    if "late" in bounds.kinds and isinstance(role, Follower) and role.asked is not None:
        yield ("late", node)


def happen(runtime: Runtime, label: Label, bounds: Bounds) -> Runtime:
    """The world after one event and all that follows from it at once."""
    if "unheard by" in label:
        at = label.index("unheard by")
        for node in label[at + 1 :]:
            assert isinstance(node, int)
            runtime = _with_host(runtime, node, runtime.hosts[node - 1]._replace(is_deaf=True))
        runtime = runtime._replace(faults=runtime.faults - (len(label) - at - 1))
        label = label[:at]
    after = _happen(runtime, label, bounds)
    return _trimmed(_settled(after, bounds, held=label[1] if label[0] == "twice" else None))


def _happen(runtime: Runtime, label: Label, bounds: Bounds) -> Runtime:
    kind = label[0]
    if kind == "deliver":
        return _deliver(runtime._replace(soup=runtime.soup - {label[1]}), label[1])
    if kind == "twice":
        return _deliver(runtime._replace(faults=runtime.faults - 1), label[1])
    if kind in ("elect", "elect unclean"):
        return _elect(runtime, unclean=kind == "elect unclean")
    node = label[1]
    assert isinstance(node, int)
    return _happen_to(runtime, str(kind), node, label, bounds)


def _settled(runtime: Runtime, bounds: Bounds, held: object) -> Runtime:
    """What nobody delays happens now: metadata is applied, the new leader first; followers sync, and ask whoever can answer."""
    before = None
    while runtime is not before:
        before = runtime
        for message in sorted(runtime.soup, key=repr):
            if message == held or isinstance(message, Fetch | ProposeChange):
                continue
            if message.question.node not in bounds.slow:
                runtime = _deliver(runtime._replace(soup=runtime.soup - {message}), message)
        first = runtime.now.assignment.leader or 1
        for node in (first, *(each for each in NODES if each != first)):
            host = runtime.hosts[node - 1]
            if not host.alive:
                continue
            while not host.is_deaf and host.applied < len(runtime.entries) - 1:
                runtime = _applied(runtime, node)
                host = runtime.hosts[node - 1]
            log, role = host.replica.log, host.replica.role
            if log.durable < log.end and host.replica.flush_on_ack and not bounds.lazy_syncs:
                runtime = _told(runtime, node, Synced(log.end, 0))
            elif (
                isinstance(role, Follower)
                and role.asked is None
                and _can_answer(runtime, role.leader, host.replica)
                and follower.is_synced_to_end(host.replica)
            ):
                runtime = _told(runtime, node, Tick())
    return runtime


def _applied(runtime: Runtime, node: int) -> Runtime:
    host = runtime.hosts[node - 1]
    at = host.applied + 1
    host = host._replace(applied=at, is_deaf=host.is_deaf and at < len(runtime.entries) - 1)
    return _told(_with_host(runtime, node, host), node, _as_assigned(runtime, at))


def _can_answer(runtime: Runtime, asked: int, asks: Replica) -> bool:
    host = runtime.hosts[asked - 1]
    role = host.replica.role
    if not host.alive or not isinstance(role, Leader) or host.replica.epoch != asks.epoch or not role.has_begun:
        return False
    progress = role.progress(asks.node)
    return progress is not None and progress.incarnation == asks.incarnation


def _happen_to(runtime: Runtime, kind: str, node: int, label: Label, bounds: Bounds) -> Runtime:
    host = runtime.hosts[node - 1]
    if kind in ("kill", "power", "wipe"):
        return _crash(runtime, node, kind)
    if kind in ("fence", "accuse"):
        return _fence(runtime._replace(faults=runtime.faults - (kind == "accuse")), node)
    if kind in ("start", "register"):
        return (_start if kind == "start" else _register)(runtime, node, bounds)
    if kind in ("append", "write"):
        value = runtime.written
        needs_all = kind == "append"
        message = Append(value if needs_all else value + WEAK, 1, value, needs_all=needs_all)
        return _told(runtime._replace(written=value + 1), node, message)
    if kind in ("sync", "poll", "read"):
        messages: dict[str, Message] = {
            "sync": Synced(host.replica.log.end, 0),
            "poll": Tick(),
            "read": ReadIndex(READ + len(runtime.reads)),
        }
        if kind == "read":
            runtime = runtime._replace(reads=(*runtime.reads, len(runtime.promised)))
        return _told(runtime, node, messages[kind], QUIET_WAIT_MS_MAX)
    if kind == "lag":
        return _lag(runtime, node, label[2])
    assert kind in ("apply", "late")
    return _applied(runtime, node) if kind == "apply" else _late(runtime, host)


# ── A node takes a step ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _told(runtime: Runtime, node: int, message: Message, now_ms: int = 0) -> Runtime:
    """One step of one node: its state, its log, its messages; then the promises."""
    host = runtime.hosts[node - 1]
    try:
        after, ready = replica.step(host.replica, message, now_ms)
    except AssertionError as error:
        raise Broken(f"node {node} stops: {error}") from error
    records = _persisted(host.records, ready)
    if after.watermark < host.replica.watermark and not after.assignment.unclean_epoch:
        raise Broken(f"the watermark of node {node} falls from {host.replica.watermark} to {after.watermark}")
    if len(records) != after.log.end:
        raise Broken(f"the log of node {node} ends at {len(records)}, its summary at {after.log.end}")
    runtime = _with_host(runtime, node, host._replace(records=records, replica=_plain(after)))
    runtime = _with_promises(runtime, node, ready)
    for sent in _sent(ready, records):
        runtime = _on_its_way(runtime, sent)
    for effect in ready.persist:
        if isinstance(effect, BeginEpoch):
            runtime = _told(runtime, node, EpochStarted(effect.epoch))
    return runtime


def _on_its_way(runtime: Runtime, message: Sent) -> Runtime:
    """Questions and refusals arrive at once (one that is late is a fault of its own, "late"); the rest arrives some time."""
    match message:
        case Fetch(leader=leader):
            return _told(runtime, leader, message) if runtime.hosts[leader - 1].alive else runtime
        case Refused(question):
            return _told(runtime, question.node, message)
    return runtime._replace(soup=runtime.soup | {message})


def _persisted(records: tuple[Record, ...], ready: Ready) -> tuple[Record, ...]:
    for effect in ready.persist:
        match effect:
            case Write(batch):
                values = batch.records
                assert isinstance(values, int | tuple)
                new = ((batch.epoch, values),) if isinstance(values, int) else values
                records = records[: batch.base] + new
            case Truncate(end):
                records = records[:end]
            case ResetLogTo(offset):
                assert offset == 0, "no log of this model begins later"
                records = ()
    return records


def _sent(ready: Ready, records: tuple[Record, ...]) -> list[Sent]:
    found: list[Sent] = []
    for message in ready.send:
        if isinstance(message, Respond):
            base = message.question.offset
            batches = tuple(
                Batch(at, at + 1, records[at][0], (records[at],)) for at in range(base, min(message.end, len(records)))
            )
            answer = Fetched(message.question, batches, message.watermark, message.start, round=message.round)
            found.append(answer)
        elif isinstance(message, Fetch | Diverging | ResetLog | Refused | ProposeChange):
            found.append(message)
    return found


def _plain(after: Replica) -> Replica:
    """Without what makes no difference here: when somebody last asked, and how often the log was cut."""
    role = after.role
    if isinstance(role, Leader) and any(each.leader_end for each in role.followers):
        followers = tuple(msgspec.structs.replace(each, leader_end=0) for each in role.followers)
        after = after.now(role=msgspec.structs.replace(role, followers=followers))
    if after.log.cuts:
        after = after.now(log=msgspec.structs.replace(after.log, cuts=0))
    return after


def _lag(runtime: Runtime, node: int, follower_late: object) -> Runtime:
    """One follower is late; the others have just caught up."""
    host = runtime.hosts[node - 1]
    role = host.replica.role
    assert isinstance(role, Leader)
    late = LAG_MS_MAX + 1
    followers = tuple(
        each if each.node == follower_late else msgspec.structs.replace(each, caught_up_ms=late, asked_ms=late)
        for each in role.followers
    )
    prepared = host.replica.now(role=msgspec.structs.replace(role, followers=followers))
    runtime = runtime._replace(faults=runtime.faults - 1)
    runtime = _told(_with_host(runtime, node, host._replace(replica=prepared)), node, Tick(), late)
    host = runtime.hosts[node - 1]
    role = host.replica.role
    assert isinstance(role, Leader)
    plain = tuple(msgspec.structs.replace(each, caught_up_ms=0, asked_ms=0) for each in role.followers)
    return _with_host(
        runtime, node, host._replace(replica=host.replica.now(role=msgspec.structs.replace(role, followers=plain)))
    )


def _late(runtime: Runtime, host: Host) -> Runtime:
    """A copy of a question is still under way."""
    assert isinstance(host.replica.role, Follower)
    question = host.replica.role.asked
    assert question is not None
    return runtime._replace(faults=runtime.faults - 1, soup=runtime.soup | {question})


def _with_host(runtime: Runtime, node: int, host: Host) -> Runtime:
    return runtime._replace(hosts=(*runtime.hosts[: node - 1], host, *runtime.hosts[node:]))


# ── Promises ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_promises(runtime: Runtime, node: int, ready: Ready) -> Runtime:
    host = runtime.hosts[node - 1]
    _check_reads(runtime, node, ready)
    runtime = _promise(runtime, node, max([replica.readable_end(host.replica), *_acknowledged(ready)]))
    role = host.replica.role
    if isinstance(role, Leader) and role.has_begun:
        runtime = _with_leader(runtime, node, host.replica)
        is_latest = host.replica.epoch == runtime.now.assignment.leader_epoch
        if is_latest and host.records[: len(runtime.promised)] != runtime.promised:
            raise Broken(
                f"node {node} leads epoch {host.replica.epoch} with {host.records}, promised is {runtime.promised}"
            )
    return runtime


def _acknowledged(ready: Ready) -> list[int]:
    """Up to where writers were told that all have it, and readers were shown. What needs its leader only is no promise."""
    told = [outcome for outcome in ready.apply if isinstance(outcome, Done)]
    return [outcome.end for outcome in told if outcome.token < WEAK or outcome.token >= READ]


def _check_reads(runtime: Runtime, node: int, ready: Ready) -> None:
    """A reader sees all that was promised before he asked."""
    for outcome in ready.apply:
        if isinstance(outcome, Done) and outcome.token >= READ and outcome.end < runtime.reads[outcome.token - READ]:
            raise Broken(
                f"node {node} answers a reader with {outcome.end} records, though {runtime.reads[outcome.token - READ]} "
                "were promised when he asked"
            )


def _promise(runtime: Runtime, node: int, end: int) -> Runtime:
    """A reader has seen these, or a writer was told of them: they are the same for everyone, for ever."""
    host = runtime.hosts[node - 1]
    shown = host.records[:end]
    if runtime.now.assignment.unclean_epoch > max(host.replica.log.last_record_epoch, 0):
        return runtime  # an unclean election has taken promises back; this node has not heard of it, or not yet cut its log
    common = min(len(shown), len(runtime.promised))
    if shown[:common] != runtime.promised[:common]:
        raise Broken(f"node {node} shows {shown}, promised is {runtime.promised}")
    if len(shown) < end:
        raise Broken(f"node {node} promises {end} records and has {len(shown)}")
    return runtime._replace(promised=shown) if len(shown) > len(runtime.promised) else runtime


def _with_leader(runtime: Runtime, node: int, leader: Replica) -> Runtime:
    one = (leader.epoch, node, leader.incarnation)
    if one in runtime.leaders:
        return runtime
    if any(each[0] == leader.epoch for each in runtime.leaders):
        raise Broken(f"epoch {leader.epoch} is led by {runtime.leaders} and {one}")
    return runtime._replace(leaders=(*runtime.leaders, one))


# ── Crashes ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _crash(runtime: Runtime, node: int, kind: str) -> Runtime:
    """kill: the page cache stays. power: what was not synced goes, and the kept watermark is an old one. wipe: all goes."""
    host = runtime.hosts[node - 1]
    end = {"kill": host.replica.log.end, "power": host.replica.log.durable, "wipe": 0}[kind]
    log = LogSummary() if kind == "wipe" else _lost_tail(host.replica.log, end)
    dead = Replica(
        node=node,
        incarnation=host.replica.incarnation,
        log=log,
        watermark=min(host.replica.watermark, end) if kind == "kill" else 0,
        flush_on_ack=host.replica.flush_on_ack,
    )
    host = Host(
        False, host.records[:end], dead, 0, False, host.boot + (kind == "power"), host.folder + (kind == "wipe")
    )
    emptied = runtime.emptied
    if len(host.records) < len(runtime.hosts[node - 1].records) and node not in emptied:
        emptied = tuple(sorted((*emptied, node)))
    return _with_host(runtime._replace(faults=runtime.faults - 1, emptied=emptied), node, host)


def _lost_tail(log: LogSummary, end: int) -> LogSummary:
    """As storage recovers: an epoch that was begun beyond the lost tail now begins at its end."""
    if end == log.end:
        return log
    epochs = tuple(each for each in log.epochs if each[1] < end)
    if log.latest_epoch > (epochs[-1][0] if epochs else -1):
        epochs = (*epochs, (log.latest_epoch, end))
    return LogSummary(end=end, durable=end, epochs=epochs)


def _life(host: Host, remembers: int) -> registration.Life:
    return registration.Life(boot_id=str(host.boot), folder_id=str(host.folder), remembers=remembers)


def _start(runtime: Runtime, node: int, bounds: Bounds) -> Runtime:
    """The process begins. What metadata it finds first may be old: from before its own registration."""
    host = runtime.hosts[node - 1]
    old = host.replica
    opened = replica_state.opened(node, old.incarnation + 1, old.log, old.watermark, flush_on_ack=bounds.flush_on_ack)
    runtime = _with_host(runtime, node, host._replace(alive=True, replica=opened, applied=len(runtime.entries) - 1))
    runtime = _told(runtime, node, _as_assigned(runtime, len(runtime.entries) - 1))
    if runtime.hosts[node - 1].replica.role is None:
        return _register(runtime, node, bounds)
    return runtime


def _is_registered(runtime: Runtime, node: int) -> bool:
    return runtime.now.nodes[node - 1].incarnation == runtime.hosts[node - 1].replica.incarnation


# ── The metadata ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _as_assigned(runtime: Runtime, at: int) -> Assigned:
    entry = runtime.entries[at]
    incarnations = tuple((node, entry.nodes[node - 1].incarnation) for node in NODES)
    return Assigned(entry.assignment, incarnations, MIN_IN_SYNC)


def _has_room(runtime: Runtime, after: Assignment, bounds: Bounds) -> bool:
    return after.leader_epoch <= bounds.epochs and after != runtime.now.assignment


def _fenced_nodes(runtime: Runtime, node: int) -> tuple[Node, ...]:
    nodes = list(runtime.now.nodes)
    nodes[node - 1] = msgspec.structs.replace(nodes[node - 1], is_fenced=True)
    return tuple(nodes)


def _fenced(runtime: Runtime, node: int) -> Assignment:
    nodes = dict(zip(NODES, _fenced_nodes(runtime, node), strict=True))
    return election.fenced(runtime.now.assignment, node, nodes, MIN_IN_SYNC)


def _fence(runtime: Runtime, node: int) -> Runtime:
    entry = Entry(_fenced(runtime, node), _fenced_nodes(runtime, node))
    return runtime._replace(entries=(*runtime.entries, entry))


def _registration(runtime: Runtime, node: int, bounds: Bounds) -> tuple[Entry, registration.Registration, int]:
    host, before = runtime.hosts[node - 1], runtime.lives[node - 1]
    is_alive_and_fenced = host.alive and _is_registered(runtime, node)
    incarnation = runtime.now.nodes[node - 1].incarnation + 1
    remembers = 0 if host.folder and before.life.folder_id != str(host.folder) else before.incarnation
    life = _life(host, remembers)
    if is_alive_and_fenced:
        life = before.life
        life = msgspec.structs.replace(life, remembers=before.incarnation)
    is_whole = registration.is_whole(before, life, flush_on_ack=bounds.flush_on_ack, is_damaged=False)
    nodes = list(runtime.now.nodes)
    nodes[node - 1] = Node(incarnation=incarnation)
    known = dict(zip(NODES, nodes, strict=True))
    assignment = election.registered(runtime.now.assignment, node, known, MIN_IN_SYNC, is_whole=is_whole)
    # Which boot and folder they were makes no difference from here on, only whether the next ones are others.
    kept = msgspec.structs.replace(life, boot_id="0", folder_id="0")
    return Entry(assignment, tuple(nodes)), registration.Registration(incarnation, kept), incarnation


def _may_register(runtime: Runtime, node: int, bounds: Bounds) -> bool:
    entry, _, _ = _registration(runtime, node, bounds)
    return entry.assignment.leader_epoch <= bounds.epochs


def _register(runtime: Runtime, node: int, bounds: Bounds) -> Runtime:
    """The node's registration is written; a node that was only taken for dead begins another life."""
    entry, one, incarnation = _registration(runtime, node, bounds)
    host = runtime.hosts[node - 1]
    host = host._replace(boot=0, folder=0)
    if host.replica.incarnation != incarnation:
        host = host._replace(replica=host.replica.registered_as(incarnation))
    lives = (*runtime.lives[: node - 1], one, *runtime.lives[node:])
    return _with_host(runtime._replace(entries=(*runtime.entries, entry), lives=lives), node, host)


def _elect(runtime: Runtime, *, unclean: bool) -> Runtime:
    known = runtime.now.assignment
    if not unclean:
        after = election.elect(known, runtime.now.registered())
        return runtime._replace(entries=(*runtime.entries, runtime.now._replace(assignment=after)))
    ends = {
        node: election.LogEnd(
            runtime.hosts[node - 1].replica.log.last_record_epoch, len(runtime.hosts[node - 1].records)
        )
        for node in known.torn
    }
    after = election.elect_unclean(known, ends)
    assert after.leader is not None
    kept = runtime.hosts[after.leader - 1].records
    same = next((at for at, (a, b) in enumerate(zip(kept, runtime.promised, strict=False)) if a != b), len(kept))
    if same < len(runtime.promised) and len(runtime.emptied) < MIN_IN_SYNC:
        raise Broken(
            f"an unclean election loses {runtime.promised[same:]}, though only {runtime.emptied} lost anything"
        )
    # Said loudly: what the winner does not have is lost, and no promise any more.
    return runtime._replace(
        entries=(*runtime.entries, runtime.now._replace(assignment=after)), promised=runtime.promised[:same]
    )


def _may_elect_unclean(runtime: Runtime, bounds: Bounds) -> bool:
    known = runtime.now.assignment
    return (
        not known.in_sync
        and not known.eligible
        and bool(known.torn)
        and all(runtime.hosts[node - 1].alive and _is_registered(runtime, node) for node in known.torn)
        and known.leader_epoch < bounds.epochs
    )


# ── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _deliver(runtime: Runtime, message: object) -> Runtime:
    match message:
        case Fetch():
            return _told(runtime, message.leader, message) if runtime.hosts[message.leader - 1].alive else runtime
        case Fetched() | Diverging() | ResetLog() | Refused():
            node = message.question.node
            return _told(runtime, node, message) if runtime.hosts[node - 1].alive else runtime
        case ProposeChange(change):
            return _proposed(runtime, change)
    raise AssertionError(message)


def _proposed(runtime: Runtime, change: sets.InSyncSetChange) -> Runtime:
    known = runtime.now.assignment
    if sets.may_change(known, change, runtime.now.registered()):
        after = sets.with_change(known, change, MIN_IN_SYNC)
        return runtime._replace(entries=(*runtime.entries, runtime.now._replace(assignment=after)))
    leader = known.leader
    if sets.is_current(known, change) and leader is not None and runtime.hosts[leader - 1].alive:
        return _told(runtime, leader, ChangeRefused(change))
    return runtime


def _trimmed(runtime: Runtime) -> Runtime:
    """Entries that everyone alive has applied are of no more use; nobody reads them again."""
    first = min((host.applied for host in runtime.hosts if host.alive), default=len(runtime.entries) - 1)
    if not first:
        return runtime
    hosts = tuple(host._replace(applied=max(host.applied - first, 0)) for host in runtime.hosts)
    return runtime._replace(hosts=hosts, entries=runtime.entries[first:])


# ── In words ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_words(label: Label) -> str:
    """An event as a line of a schedule: "deliver to 2: 1 record from 0, epoch 1, watermark 0"."""
    return " ".join(_message_in_words(part) if isinstance(part, msgspec.Struct) else str(part) for part in label)


def _message_in_words(message: object) -> str:
    match message:
        case Fetch():
            return f"to {message.leader}: {message.node}.{message.incarnation} asks from {_place(message)}"
        case Fetched(question, batches, watermark):
            return f"to {question.node}.{question.incarnation}: {len(batches)} from {_place(question)}, watermark {watermark}"
        case Diverging(question, epoch, end):
            return f"to {question.node}.{question.incarnation}: at {_place(question)} logs part, epoch {epoch} ended at {end}"
        case ResetLog(question, start):
            return f"to {question.node}.{question.incarnation}: start anew at {start}"
        case ProposeChange(change):
            verb = "joins" if change.joins else "leaves"
            return (
                f"to the metadata: {change.node}.{change.incarnation} {verb} "
                f"(epochs {change.leader_epoch}, {change.partition_epoch})"
            )
    raise AssertionError(message)


def _place(question: Fetch) -> str:
    return f"{question.offset}, epoch {question.epoch}, last {question.last_epoch}"
