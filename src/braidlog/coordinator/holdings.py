"""What a node keeps in memory for its clients: how many of each kind, for whom, and about how many bytes.

Knows: counts, limits, shares. Refuses to know: what a group or a transaction is, connections and their memory.
Invariants: nothing new is admitted beyond a limit, the share of one principal, or the bytes that all may take together; what is
there already goes on. A thing is counted as long as it holds bytes, so that counts follow what is kept and not who asked.

Whose something is, is known since it was made or, after a restart, since somebody has used it again: until then it counts for
the node alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from braidlog.model.errors import BrokerError, Reason

NODE = ""
"""Who the node is to itself: it has no share, and uses up nobody's."""
_UNLIMITED_BYTES = 2**62


class StateKind(StrEnum):
    """What is counted; the values are words of settings, metrics and messages."""

    GROUPS = "groups"
    TRANSACTIONAL_IDS = "transactional_ids"
    NAMED_PRODUCERS = "named_producers"
    SINKS = "sinks"
    SNAPSHOTS = "snapshots"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


class StateLimits(msgspec.Struct, frozen=True):
    """How much of each kind a node keeps, and for how long."""

    partitions_max: int = 20_000
    """Of all topics together."""
    groups_max: int = 10_000
    members_per_group_max: int = 1_000
    commits_per_group_max: int = 20_000
    """Partitions of which one group has a committed offset."""
    transactional_ids_max: int = 100_000
    named_producers_max: int = 100_000
    """Producers that name themselves (Cursus)."""
    producers_max: int = 200_000
    """Idempotent producers that partitions remember, once for each partition."""
    sinks_max: int = 10_000
    """Sinks with a last batch (Spark)."""
    snapshots_max: int = 100_000
    """Snapshots of event streams (Cursus)."""
    streams_max: int = 1_000_000
    """Event streams (Cursus) of all topics together, whoever wrote them."""
    principal_share: float = 0.5
    """How much of each of these one principal may use, where the node knows principals."""
    topics_per_second: float = 10.0
    """How many topics one principal may have made by using them, in the long run; making them by request has no rate."""
    topics_burst: int = 100
    """And how many at once."""
    transactional_id_expiration_ms: int = 7 * 24 * 3600 * 1000
    """A transactional id that nobody used for so long is forgotten; its producer id is never given again."""

    def of(self, kind: StateKind) -> int:
        found: int = getattr(self, f"{kind}_max")
        return found


class Held(msgspec.Struct):
    by: str
    size_bytes: int = 0


class Holdings:
    """One for a node. With `is_shared`, no principal may have more than its share."""

    def __init__(
        self, limits: StateLimits | None = None, *, is_shared: bool = False, bytes_max: int = _UNLIMITED_BYTES
    ) -> None:
        self.limits = limits or StateLimits()
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._is_shared = is_shared
        self._held: dict[StateKind, dict[str, Held]] = {kind: {} for kind in StateKind}
        self._counts: Counter[tuple[StateKind, str]] = Counter()

    def used(self, kind: StateKind) -> int:
        return len(self._held[kind])

    def used_by(self, kind: StateKind, principal: str) -> int:
        return self._counts[kind, principal]

    # -- before something is made ----------------------------------------------------------------------------

    @contextmanager
    def admitted(self, kind: StateKind, name: str, by: str) -> Iterator[None]:
        """Inside, `name` is made or used: refused if it is new and there is no room. It counts if something comes of it."""
        known = self._held[kind].get(name)
        if known is None:
            self.check_new(kind, name, by)
            self._held[kind][name] = Held(by)
            self._counts[kind, by] += 1
        elif known.by == NODE != by:
            self._counts[kind, NODE] -= 1
            self._counts[kind, by] += 1
            known.by = by
        try:
            yield
        finally:
            self._forget_if_nothing(kind, name)

    def check_new(self, kind: StateKind, name: str, by: str) -> None:
        """Refuse one too many of a kind; one that is there is fine."""
        if name in self._held[kind]:
            return
        limit = self.limits.of(kind)
        if self.used(kind) >= limit:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"this node keeps {limit} {kind.words} and no more: delete some, or raise state.{kind}_max",
            )
        self.check_share(kind.value, by, self._counts[kind, by], 1, limit)
        self.check_room()

    def check_share(self, what: str, by: str, used: int, more: int, limit: int) -> None:
        """Refuse what would be more than one principal may have of it."""
        share = int(limit * self.limits.principal_share)
        if self._is_shared and by != NODE and used + more > share:
            words = what.replace("_", " ")
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"{by!r} has {used} of this node's {limit} {words}, and its share is {share}: delete some, or raise "
                f"state.{what}_max or state.principal_share",
            )

    def check_room(self) -> None:
        """Refuse anything new when what is kept takes all the memory that it may."""
        if self.bytes_held >= self.bytes_max:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"groups, transactions and the like hold {self.bytes_held} bytes of this node's memory and take no more: "
                "delete some, or raise limits.memory_bytes_max",
            )

    # -- afterwards ------------------------------------------------------------------------------------------

    def change(self, kind: StateKind, name: str, more_bytes: int) -> None:
        """`name` holds so much more, or less, than before."""
        if not more_bytes:
            return
        held = self._held[kind].get(name)
        if held is None:
            held = self._held[kind][name] = Held(NODE)
            self._counts[kind, NODE] += 1
        held.size_bytes += more_bytes
        self.bytes_held += more_bytes
        assert held.size_bytes >= 0, f"{kind} {name!r} gave back more than it had"
        self._forget_if_nothing(kind, name)

    def _forget_if_nothing(self, kind: StateKind, name: str) -> None:
        held = self._held[kind].get(name)
        if held is not None and not held.size_bytes:
            del self._held[kind][name]
            self._counts[kind, held.by] -= 1
            if not self._counts[kind, held.by]:
                del self._counts[kind, held.by]


class Account(NamedTuple):
    """How the values of one table count: each holds some bytes of what `name_of` its key says."""

    holdings: Holdings
    kind: StateKind
    size_of: Callable[[Any], int] = lambda _: 0
    """Of a value, about, beside what every entry takes."""
    name_of: Callable[[tuple[str | int, ...]], str] = lambda key: str(key[1])

    def moved(self, key: tuple[str | int, ...], before: object, after: object) -> None:
        """A value took the place of another; None is none."""
        more = (after is not None and self._size(key, after)) - (before is not None and self._size(key, before))
        self.holdings.change(self.kind, self.name_of(key), more)

    def _size(self, key: tuple[str | int, ...], value: object) -> int:
        return ENTRY_BYTES + sum(len(word) for word in key if isinstance(word, str)) + self.size_of(value)


PLACE_BYTES = 400
COMMIT_BYTES = 400
"""What a partition that was added to a transaction, and a commit that it staged, take in memory. Measured."""
ENTRY_BYTES = 600
"""What an entry takes beside its words: its key, its value, its places in the dictionaries that know it. Measured."""
