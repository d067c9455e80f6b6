"""Failure detection of one node: pings, silence, witnesses and self-doubt (SWIM, Lifeguard).

A verdict does not act; it only prompts a proposal to the metadata.
Invariants: silence at one node is not enough, a second node must find the same. Silence means a PING without an
answer, not a missing PING. A node that was late does not count that time as silence; it then waits longer in
proportion, also as a witness. A peer that answers slowly is given that extra time too. An incarnation that never
answered can be accused by its lease alone.
"""

from typing import Final

import msgspec

PING_MS = 100
SILENCE_MS_MAX = 500
"""The default of `Swim.silence_ms`."""
LATE_MS = 250
"""A tick later than this shows that this node was paused, not that the other nodes were silent."""
JITTER_MS_MAX = PING_MS
"""Lateness up to this value raises no doubt."""
DOUBT_MS = 10_000
PATIENCE_FACTOR_MAX = 10
"""Doubt multiplies a wait by at most this factor."""
SILENCE_CONFIRMATIONS = 2
"""Number of nodes that must find the same silence: the accuser and a witness."""
LEASE_CALM_MS = 5_000
"""After a metadata outage, leases count again this long after the first message."""
PING_ALL_MAX = 8
PINGS_PER_TICK = 3


# ── Input messages ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Members(msgspec.Struct, frozen=True):
    """Pairs of node and incarnation of every registered node that is not fenced, from the metadata."""

    nodes: tuple[tuple[int, int], ...]


class Tick(msgspec.Struct, frozen=True):
    """Sent every `PING_MS`. `draw` is a random number that selects the peers to ping in a large cluster."""

    draw: int = 0


class Pong(msgspec.Struct, frozen=True):
    node: int
    incarnation: int


class ConnectionRefused(msgspec.Struct, frozen=True):
    """A connection was reset and the next attempt was refused: the port is closed."""

    node: int


class PingRequest(msgspec.Struct, frozen=True):
    """Another node asks this node to ping a suspect."""

    by: int
    node: int
    incarnation: int


class WitnessReport(msgspec.Struct, frozen=True):
    """The result of a witness."""

    by: int
    node: int
    incarnation: int
    is_alive: bool
    is_refused: bool = False


class LeaseExpired(msgspec.Struct, frozen=True):
    node: int
    incarnation: int


class MetadataTick(msgspec.Struct, frozen=True):
    """The metadata answered and confirmed the leases of `holders`."""

    holders: tuple[int, ...] = ()


class MetadataSilent(msgspec.Struct, frozen=True):
    """The metadata does not answer, so leases are unknown."""


class Leave(msgspec.Struct, frozen=True):
    """A node announces that it stops."""

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


# ── Effects ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    """This incarnation is probably dead."""

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

    def with_sample(self, late_ms: int, now_ms: int) -> "Lateness":
        if late_ms <= JITTER_MS_MAX or late_ms < self.at(now_ms):
            return self
        return Lateness(late_ms, now_ms + DOUBT_MS)


class Peer(msgspec.Struct, frozen=True):
    node: int
    incarnation: int
    heard_ms: int
    """When the peer last answered, or when observation restarted."""
    asks_since_ms: int | None = None
    """When the first unanswered PING was sent."""
    has_answered: bool = False
    slow: Lateness = Lateness()
    """How long the peer's answers took."""
    is_refused: bool = False
    witnesses_ms: int | None = None
    """When witnesses were last asked."""
    accused: tuple[int, int] | None = None
    """The node that last requested a witness check, and when: that node got no answer either."""
    has_lost_lease: bool = False
    is_condemned: bool = False
    requests: tuple[int, ...] = ()
    """Nodes that wait for this node's report."""


class Swim(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    peers: tuple[Peer, ...] = ()
    ticked_ms: int | None = None
    silence_ms: int = SILENCE_MS_MAX
    late: Lateness = Lateness()
    """How late this node was."""
    leases_count_from_ms: int | None = None
    """None: no message from the metadata yet, or the metadata is silent."""

    def peer(self, node: int, incarnation: int | None = None) -> Peer | None:
        found = next((each for each in self.peers if each.node == node), None)
        return found if found is not None and incarnation in (None, found.incarnation) else None

    def with_peer(self, peer: Peer, **fields: object) -> "Swim":
        """Replace a peer's entry by `peer` with `fields` changed."""
        changed = msgspec.structs.replace(peer, **fields)
        return msgspec.structs.replace(
            self, peers=tuple(changed if each.node == peer.node else each for each in self.peers)
        )

    @property
    def witness_ms(self) -> int:
        """How long a witness waits for an answer before it reports silence."""
        return self.silence_ms * 2 // 5

    def extended_wait(self, patience_ms: int, now_ms: int, peer: Peer | None = None) -> int:
        """A wait, extended by this node's lateness and by the peer's answer times."""
        late_ms, slow_ms = self.late.at(now_ms), 0 if peer is None else peer.slow.at(now_ms)
        own_ms = max(late_ms, patience_ms if late_ms > LATE_MS else 0)
        return min(patience_ms + own_ms + slow_ms, PATIENCE_FACTOR_MAX * patience_ms)


SwimStepped = tuple[Swim, SwimReady]


def step(swim: Swim, message: SwimMessage, now_ms: int) -> SwimStepped:
    if swim.ticked_ms is not None:
        # Whatever the message is: data read first after a pause was sent before the pause.
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
    """Update the members and ping new ones immediately. No witness accuses a peer before its first answer."""
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
    """Record that this node was late. Long pauses of this node do not count as silence of its peers."""
    swim = msgspec.structs.replace(swim, late=swim.late.with_sample(late_ms, now_ms))
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
    return tuple(nodes[(draw + at) % len(nodes)] for at in range(PINGS_PER_TICK))


def _asked(swim: Swim, peer: Peer, now_ms: int) -> tuple[Swim, Peer]:
    if peer.asks_since_ms is not None:
        return swim, peer
    asked = msgspec.structs.replace(peer, asks_since_ms=now_ms)
    return swim.with_peer(asked), asked


def _is_silent(swim: Swim, peer: Peer, now_ms: int) -> bool:
    """Whether a peer left a PING unanswered for too long. In a large cluster each peer is pinged rarely, so time
    before the PING does not count.
    """
    if peer.asks_since_ms is None:
        return False
    since_ms = max(peer.heard_ms, peer.asks_since_ms - PING_MS)
    return now_ms - since_ms >= swim.extended_wait(swim.silence_ms, now_ms, peer)


def _judged(swim: Swim, peer: Peer | None, now_ms: int) -> SwimStepped:
    """Judge a silent peer: dead if its lease also expired, else ask witnesses."""
    if peer is None or peer.is_condemned or not _is_silent(swim, peer, now_ms):
        return swim, NOTHING
    if peer.has_lost_lease and _leases_count(swim, now_ms):
        return _condemned(swim, peer, "silent, and its lease has expired")
    if peer.has_answered and peer.accused is not None and now_ms - peer.accused[1] < swim.silence_ms:
        # Without another round of witnesses: the lowest node proposes, and must not learn of the failure last.
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
        slow = peer.slow if peer.asks_since_ms is None else peer.slow.with_sample(now_ms - peer.asks_since_ms, now_ms)
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
        return _condemned(swim, swim.peer(peer.node), "refuses connections; no third node can confirm")
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
        # The peer lives: silence between two nodes only is a network problem.
        return (swim.with_peer(peer, heard_ms=now_ms) if message.is_alive else swim), NOTHING
    if peer.is_refused and message.is_refused:
        return _condemned(swim, peer, f"refuses connections, also those of node {message.by}")
    if _is_silent(swim, peer, now_ms):
        return _condemned(swim, peer, f"silent, also towards node {message.by}")
    return swim, NOTHING


def _reported_late(swim: Swim, peer: Peer | None, now_ms: int) -> tuple[Swim, tuple[SendReport, ...]]:
    """A witness that has already waited long enough reports immediately."""
    if peer is None or not peer.requests or peer.asks_since_ms is None:
        return swim, ()
    if not peer.is_refused and now_ms - peer.asks_since_ms < swim.extended_wait(swim.witness_ms, now_ms, peer):
        return swim, ()
    return _reported(swim, peer)


def _reported(swim: Swim, peer: Peer, *, is_alive: bool = False) -> tuple[Swim, tuple[SendReport, ...]]:
    """Report to all nodes that asked."""
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
