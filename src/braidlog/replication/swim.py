"""Who is alive, as one node sees it: pings, silence, witnesses, doubt in oneself (SWIM, Lifeguard).

Knows: when it last heard of whom. Refuses to know: what a verdict leads to; it only decides when somebody proposes something.
Invariants: silence alone accuses no node, a second node must find the same; silence is a PING without an answer, not the absence
of a PING. A node that was late counts no silence meanwhile; for a while it waits longer, as witness too: the longer, the later it
was. A peer that answers slowly is given that time as well. An incarnation that never answered is accused by its lease alone.
"""

from typing import Final

import msgspec

PING_MS = 100
SILENCE_MS_MAX = 500
"""The default of `Swim.silence_ms`."""
LATE_MS = 250
"""A tick that comes so much too late says that we, not the others, were away."""
JITTER_MS_MAX = PING_MS
"""A lateness up to it raises no doubt."""
DOUBT_MS = 10_000
PATIENCE_FACTOR_MAX = 10
"""A doubt makes no wait longer than so many times itself."""
FINDERS = 2
"""Nodes that must find the same silence: the accuser and a witness."""
LEASE_CALM_MS = 5_000
"""After an outage of the metadata its leases count again so long after its first sign of life."""
PING_ALL_MAX = 8
PINGED_AT_ONCE = 3


# ── What it is told ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Members(msgspec.Struct, frozen=True):
    """(node, incarnation) of everyone registered and not fenced, from the metadata."""

    nodes: tuple[tuple[int, int], ...]


class Tick(msgspec.Struct, frozen=True):
    """Every `PING_MS`. `draw` is a random number, by which some are chosen where there are too many to ping all."""

    draw: int = 0


class Pong(msgspec.Struct, frozen=True):
    node: int
    incarnation: int


class ConnectionRefused(msgspec.Struct, frozen=True):
    """A connection was reset, and the next one refused: nobody listens there."""

    node: int


class PingRequest(msgspec.Struct, frozen=True):
    """Another node asks us to look."""

    by: int
    node: int
    incarnation: int


class WitnessReport(msgspec.Struct, frozen=True):
    """What a witness found."""

    by: int
    node: int
    incarnation: int
    is_alive: bool
    is_refused: bool = False


class LeaseExpired(msgspec.Struct, frozen=True):
    node: int
    incarnation: int


class MetadataTick(msgspec.Struct, frozen=True):
    """The metadata has shown a sign of life, and that the leases of `holders` live."""

    holders: tuple[int, ...] = ()


class MetadataSilent(msgspec.Struct, frozen=True):
    """The metadata does not answer: leases say nothing."""


class Leave(msgspec.Struct, frozen=True):
    """A node says that it stops."""

    node: int
    incarnation: int


SwimMessage = (
    Members
    | Tick
    | Pong
    | ConnectionRefused
    | PingRequest
    | WitnessReport
    | LeaseExpired
    | MetadataTick
    | MetadataSilent
    | Leave
)


# ── What follows ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Ping(msgspec.Struct, frozen=True):
    node: int


class AskWitness(msgspec.Struct, frozen=True):
    """Send `witness` a `PingRequest` about `node`."""

    witness: int
    node: int
    incarnation: int


class SendReport(msgspec.Struct, frozen=True):
    to: int
    report: WitnessReport


class Verdict(msgspec.Struct, frozen=True):
    """This incarnation is dead, as far as we can know."""

    node: int
    incarnation: int
    cause: str


class SwimReady(msgspec.Struct, frozen=True):
    send: tuple[Ping | AskWitness | SendReport, ...] = ()
    """First: to peers."""
    verdicts: tuple[Verdict, ...] = ()
    """Then: to the controller of this node."""


NOTHING: Final = SwimReady()


# ── State ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Lateness(msgspec.Struct, frozen=True):
    """The worst lateness of the last `DOUBT_MS`."""

    worst_ms: int = 0
    until_ms: int = 0

    def at(self, now_ms: int) -> int:
        return self.worst_ms if now_ms < self.until_ms else 0

    def noted(self, late_ms: int, now_ms: int) -> "Lateness":
        if late_ms <= JITTER_MS_MAX or late_ms < self.at(now_ms):
            return self
        return Lateness(late_ms, now_ms + DOUBT_MS)


class Peer(msgspec.Struct, frozen=True):
    node: int
    incarnation: int
    heard_ms: int
    """When it last answered, or when we began to listen anew."""
    asks_since_ms: int | None = None
    """When the first PING went that is not answered yet."""
    has_answered: bool = False
    slow: Lateness = Lateness()
    """How long its answers took."""
    is_refused: bool = False
    witnesses_ms: int | None = None
    """When witnesses were last asked."""
    accused: tuple[int, int] | None = None
    """Who asked us last to look, and when: it finds no answer either."""
    has_lost_lease: bool = False
    is_condemned: bool = False
    requests: tuple[int, ...] = ()
    """The nodes that wait for our report."""


class Swim(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    peers: tuple[Peer, ...] = ()
    ticked_ms: int | None = None
    silence_ms: int = SILENCE_MS_MAX
    late: Lateness = Lateness()
    """How late this node was itself."""
    leases_count_from_ms: int | None = None
    """None: no sign of life of the metadata yet, or not any more."""

    def peer(self, node: int, incarnation: int | None = None) -> Peer | None:
        found = next((each for each in self.peers if each.node == node), None)
        return found if found is not None and incarnation in (None, found.incarnation) else None

    def with_peer(self, peer: Peer, **fields: object) -> "Swim":
        """The peer as given, but for `fields`."""
        changed = msgspec.structs.replace(peer, **fields)
        return msgspec.structs.replace(
            self, peers=tuple(changed if each.node == peer.node else each for each in self.peers)
        )

    @property
    def witness_ms(self) -> int:
        """For how long a witness has waited for an answer when it says that there was none."""
        return self.silence_ms * 2 // 5

    def in_doubt(self, patience_ms: int, now_ms: int, peer: Peer | None = None) -> int:
        """A wait, longer by what this node was late and by what the peer's answers took."""
        late_ms, slow_ms = self.late.at(now_ms), 0 if peer is None else peer.slow.at(now_ms)
        own_ms = max(late_ms, patience_ms if late_ms > LATE_MS else 0)
        return min(patience_ms + own_ms + slow_ms, PATIENCE_FACTOR_MAX * patience_ms)


SwimStepped = tuple[Swim, SwimReady]


def step(swim: Swim, message: SwimMessage, now_ms: int) -> SwimStepped:
    if swim.ticked_ms is not None:
        # Whatever wakes us: what is read first after a pause was sent before it.
        swim = _doubting(swim, now_ms - swim.ticked_ms - PING_MS, now_ms)
    match message:
        case Members():
            return _members(swim, message, now_ms)
        case Tick():
            return _ticked(swim, message, now_ms)
        case Pong() | ConnectionRefused():
            return _answered(swim, message, now_ms)
        case PingRequest() | WitnessReport():
            return _witnessed(swim, message, now_ms)
        case Leave():
            return _condemned(swim, swim.peer(message.node, message.incarnation), "left")
        case LeaseExpired() | MetadataTick() | MetadataSilent():
            return _leases(swim, message, now_ms)


def _members(swim: Swim, message: Members, now_ms: int) -> SwimStepped:
    """Who is new is asked at once: until it has answered nobody accuses it."""
    slow = {each.node: each.slow for each in swim.peers}
    known = [
        swim.peer(node, incarnation) or Peer(node, incarnation, now_ms, slow=slow.get(node, Lateness()))
        for node, incarnation in sorted(message.nodes)
        if node != swim.node
    ]
    new = [each for each in known if each not in swim.peers]
    swim = msgspec.structs.replace(swim, peers=tuple(known))
    for each in new:
        swim, _ = _asked(swim, each, now_ms)
    return swim, SwimReady(tuple(Ping(each.node) for each in new))


def _ticked(swim: Swim, message: Tick, now_ms: int) -> SwimStepped:
    swim = msgspec.structs.replace(swim, ticked_ms=now_ms)
    pinged = _pinged(swim, message.draw)
    send: list[Ping | AskWitness | SendReport] = [Ping(node) for node in pinged]
    verdicts: list[Verdict] = []
    for each in swim.peers:
        swim, peer = _asked(swim, each, now_ms) if each.node in pinged else (swim, each)
        swim, reported = _reported_late(swim, peer, now_ms)
        send += reported
        swim, ready = _judged(swim, swim.peer(peer.node), now_ms)
        send += ready.send
        verdicts += ready.verdicts
    return swim, SwimReady(tuple(send), tuple(verdicts))


def _doubting(swim: Swim, late_ms: int, now_ms: int) -> Swim:
    """We were late; if by much, the time that we were away is part of no silence."""
    swim = msgspec.structs.replace(swim, late=swim.late.noted(late_ms, now_ms))
    if late_ms <= LATE_MS:
        return swim
    peers = tuple(
        msgspec.structs.replace(
            each,
            heard_ms=min(each.heard_ms + late_ms, now_ms),
            asks_since_ms=None if each.asks_since_ms is None else min(each.asks_since_ms + late_ms, now_ms),
            witnesses_ms=None,
        )
        for each in swim.peers
    )
    return msgspec.structs.replace(swim, peers=peers, ticked_ms=now_ms)


def _pinged(swim: Swim, draw: int) -> tuple[int, ...]:
    nodes = tuple(each.node for each in swim.peers)
    if len(nodes) < PING_ALL_MAX:
        return nodes
    return tuple(nodes[(draw + at) % len(nodes)] for at in range(PINGED_AT_ONCE))


def _asked(swim: Swim, peer: Peer, now_ms: int) -> tuple[Swim, Peer]:
    if peer.asks_since_ms is not None:
        return swim, peer
    asked = msgspec.structs.replace(peer, asks_since_ms=now_ms)
    return swim.with_peer(asked), asked


def _is_silent(swim: Swim, peer: Peer, now_ms: int) -> bool:
    """Of many nodes each is asked seldom: that it said nothing before says nothing."""
    if peer.asks_since_ms is None:
        return False
    since_ms = max(peer.heard_ms, peer.asks_since_ms - PING_MS)
    return now_ms - since_ms >= swim.in_doubt(swim.silence_ms, now_ms, peer)


def _judged(swim: Swim, peer: Peer | None, now_ms: int) -> SwimStepped:
    """Silent: ask the others. Silent, and its lease is gone: dead, whoever else there is."""
    if peer is None or peer.is_condemned or not _is_silent(swim, peer, now_ms):
        return swim, NOTHING
    if peer.has_lost_lease and _leases_count(swim, now_ms):
        return _condemned(swim, peer, "silent, and its lease has expired")
    if peer.has_answered and peer.accused is not None and now_ms - peer.accused[1] < swim.silence_ms:
        # Not asked once more: the lowest node proposes, and should not be the last to know.
        return _condemned(swim, peer, f"silent, also towards node {peer.accused[0]}")
    are_asked = peer.witnesses_ms is not None and now_ms - peer.witnesses_ms < swim.silence_ms
    if not peer.has_answered or are_asked:
        return swim, NOTHING
    return swim.with_peer(peer, witnesses_ms=now_ms), SwimReady(_witnesses(swim, peer))


def _witnesses(swim: Swim, peer: Peer) -> tuple[AskWitness, ...]:
    return tuple(
        AskWitness(each.node, peer.node, peer.incarnation)
        for each in swim.peers
        if each.node != peer.node and not each.is_condemned
    )


def _answered(swim: Swim, message: Pong | ConnectionRefused, now_ms: int) -> SwimStepped:
    if isinstance(message, Pong):
        peer = swim.peer(message.node, message.incarnation)
        if peer is None:
            return swim, NOTHING
        slow = peer.slow if peer.asks_since_ms is None else peer.slow.noted(now_ms - peer.asks_since_ms, now_ms)
        heard = msgspec.structs.replace(
            peer, heard_ms=now_ms, asks_since_ms=None, has_answered=True, slow=slow, is_refused=False, witnesses_ms=None
        )
        swim, reports = _reported(swim, heard, is_alive=True)
        return swim, SwimReady(reports)
    peer = swim.peer(message.node)
    if peer is None or peer.is_condemned:
        return swim, NOTHING
    refused = msgspec.structs.replace(peer, is_refused=True, witnesses_ms=now_ms if peer.has_answered else None)
    swim, reports = _reported(swim, refused)
    if not peer.has_answered:
        return swim, SwimReady(reports)
    if len(swim.peers) == 1:
        return _condemned(swim, swim.peer(peer.node), "refuses connections; there is no third node")
    return swim, SwimReady(reports + _witnesses(swim, peer))


def _witnessed(swim: Swim, message: PingRequest | WitnessReport, now_ms: int) -> SwimStepped:
    peer = swim.peer(message.node, message.incarnation)
    if peer is None:
        return swim, NOTHING
    if isinstance(message, PingRequest):
        swim, peer = _asked(swim, peer, now_ms)
        requests = tuple(dict.fromkeys((*peer.requests, message.by)))
        swim = swim.with_peer(peer, requests=requests, accused=(message.by, now_ms))
        swim, reports = _reported_late(swim, swim.peer(peer.node), now_ms)
        return swim, SwimReady((*reports, Ping(peer.node)))
    if message.is_alive or peer.is_condemned or not peer.has_answered:
        # It lives for somebody: a silence between the two of us is a matter of the network.
        return (swim.with_peer(peer, heard_ms=now_ms) if message.is_alive else swim), NOTHING
    if peer.is_refused and message.is_refused:
        return _condemned(swim, peer, f"refuses connections, also those of node {message.by}")
    if _is_silent(swim, peer, now_ms):
        return _condemned(swim, peer, f"silent, also towards node {message.by}")
    return swim, NOTHING


def _reported_late(swim: Swim, peer: Peer | None, now_ms: int) -> tuple[Swim, tuple[SendReport, ...]]:
    """A witness that has waited for as long already need not wait once more."""
    if peer is None or not peer.requests or peer.asks_since_ms is None:
        return swim, ()
    if not peer.is_refused and now_ms - peer.asks_since_ms < swim.in_doubt(swim.witness_ms, now_ms, peer):
        return swim, ()
    return _reported(swim, peer)


def _reported(swim: Swim, peer: Peer, *, is_alive: bool = False) -> tuple[Swim, tuple[SendReport, ...]]:
    """Tell all who asked."""
    found = WitnessReport(swim.node, peer.node, peer.incarnation, is_alive, is_refused=peer.is_refused)
    return swim.with_peer(peer, requests=()), tuple(SendReport(each, found) for each in peer.requests)


def _condemned(swim: Swim, peer: Peer | None, cause: str) -> SwimStepped:
    if peer is None or peer.is_condemned:
        return swim, NOTHING
    return swim.with_peer(peer, is_condemned=True), SwimReady(verdicts=(Verdict(peer.node, peer.incarnation, cause),))


def _leases(swim: Swim, message: LeaseExpired | MetadataTick | MetadataSilent, now_ms: int) -> SwimStepped:
    match message:
        case LeaseExpired():
            peer = swim.peer(message.node, message.incarnation)
            return (swim if peer is None else swim.with_peer(peer, has_lost_lease=True)), NOTHING
        case MetadataTick(holders):
            for peer in swim.peers:
                if peer.has_lost_lease and peer.node in holders:
                    swim = swim.with_peer(peer, has_lost_lease=False)
            if swim.leases_count_from_ms is not None:
                return swim, NOTHING
            return msgspec.structs.replace(swim, leases_count_from_ms=now_ms + LEASE_CALM_MS), NOTHING
        case MetadataSilent():
            return msgspec.structs.replace(swim, leases_count_from_ms=None), NOTHING


def _leases_count(swim: Swim, now_ms: int) -> bool:
    return swim.leases_count_from_ms is not None and now_ms >= swim.leases_count_from_ms
