"""Limits on client state that a node keeps in memory: counts per kind, shares per principal, and total bytes.

Invariants: nothing new is admitted beyond a limit, a principal's share, or the total bytes; existing state stays
usable. An item counts as long as it holds bytes, so counts follow stored state, not requests.

An item's owner is known from its creation or, after a restart, from its next use. Until then it counts for the node
alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from braidlog.model.errors import BrokerError, Reason

NODE = ""
"""The node itself as a principal: it has no share and uses up no other principal's."""
_UNLIMITED_BYTES = 2**62


class StateKind(StrEnum):
    """Kinds of counted state; the values appear in settings, metrics and messages."""

    GROUPS = "groups"
    TRANSACTIONAL_IDS = "transactional_ids"
    NAMED_PRODUCERS = "named_producers"
    SINKS = "sinks"
    SNAPSHOTS = "snapshots"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


class StateLimits(msgspec.Struct, frozen=True):
    """Limits of each kind of state, and retention times."""

    partitions_max: int = 20_000
    """Partitions of all topics together."""
    groups_max: int = 10_000
    """Consumer groups."""
    members_per_group_max: int = 1_000
    """Members of one group."""
    commits_per_group_max: int = 20_000
    """Partitions per group with a committed offset."""
    transactional_ids_max: int = 100_000
    """Transactional ids of all clients together."""
    named_producers_max: int = 100_000
    """Self-named producers (Cursus)."""
    producers_max: int = 200_000
    """Idempotent producers remembered by partitions, counted once per partition."""
    sinks_max: int = 10_000
    """Sinks with a last batch (Spark)."""
    snapshots_max: int = 100_000
    """Snapshots of event streams (Cursus)."""
    streams_max: int = 1_000_000
    """Event streams (Cursus) of all topics and principals together."""
    principal_share: float = 0.5
    """Share of each limit that one principal may use, if the node knows principals."""
    topics_per_second: float = 10.0
    """Rate of topics that one principal may create automatically; explicit creation has no rate limit."""
    topics_burst: int = 100
    """Burst of automatically created topics."""
    transactional_id_expiration_ms: int = 7 * 24 * 3600 * 1000
    """A transactional id that is unused for this time is deleted; its producer id is never reused."""

    def limit_of(self, kind: StateKind) -> int:
        found: int = getattr(self, f"{kind}_max")
        return found


class Held(msgspec.Struct):
    by: str
    size_bytes: int = 0


class StateUsage:
    """Counts one node's client state. With `is_shared`, principals are limited to their share."""

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

    # -- before creation -------------------------------------------------------------------------------------

    @contextmanager
    def admit(self, kind: StateKind, name: str, by: str) -> Iterator[None]:
        """Context for creating or using `name`. Raises if it is new and exceeds a limit. It counts only if it holds
        bytes afterwards.
        """
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
        """Raise if a new item exceeds a limit; existing items pass."""
        if name in self._held[kind]:
            return
        limit = self.limits.limit_of(kind)
        if self.used(kind) >= limit:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"this node has reached its limit of {limit} {kind.words}: delete some, or raise state.{kind}_max",
            )
        self.check_share(kind.value, by, self._counts[kind, by], 1, limit)
        self.check_room()

    def check_share(self, what: str, by: str, used: int, more: int, limit: int) -> None:
        """Raise if a principal would exceed its share."""
        share = int(limit * self.limits.principal_share)
        if self._is_shared and by != NODE and used + more > share:
            words = what.replace("_", " ")
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"{by!r} has {used} of this node's {limit} {words}, its share is {share}: delete some, or raise "
                f"state.{what}_max or state.principal_share",
            )

    def check_room(self) -> None:
        """Raise if client state uses all of its memory."""
        if self.bytes_held >= self.bytes_max:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"groups, transactions and other client state hold {self.bytes_held} bytes, limit reached: "
                "delete some, or raise limits.memory_bytes_max",
            )

    # -- after creation --------------------------------------------------------------------------------------

    def change(self, kind: StateKind, name: str, more_bytes: int) -> None:
        """Record that `name` holds more, or fewer, bytes."""
        if not more_bytes:
            return
        held = self._held[kind].get(name)
        if held is None:
            held = self._held[kind][name] = Held(NODE)
            self._counts[kind, NODE] += 1
        held.size_bytes += more_bytes
        self.bytes_held += more_bytes
        assert held.size_bytes >= 0, f"{kind} {name!r} released more bytes than it held"
        self._forget_if_nothing(kind, name)

    def _forget_if_nothing(self, kind: StateKind, name: str) -> None:
        held = self._held[kind].get(name)
        if held is not None and not held.size_bytes:
            del self._held[kind][name]
            self._counts[kind, held.by] -= 1
            if not self._counts[kind, held.by]:
                del self._counts[kind, held.by]


class Account(NamedTuple):
    """How the entries of one table count: each holds bytes for the item that `name_of` derives from its key."""

    holdings: StateUsage
    kind: StateKind
    size_of: Callable[[Any], int] = lambda _: 0
    """Approximate size of a value, without the fixed cost of an entry."""
    name_of: Callable[[tuple[str | int, ...]], str] = lambda key: str(key[1])

    def moved(self, key: tuple[str | int, ...], before: object, after: object) -> None:
        """Record that a value replaced another; None means no value."""
        more = (after is not None and self._size(key, after)) - (before is not None and self._size(key, before))
        self.holdings.change(self.kind, self.name_of(key), more)

    def _size(self, key: tuple[str | int, ...], value: object) -> int:
        return ENTRY_BYTES + sum(len(word) for word in key if isinstance(word, str)) + self.size_of(value)


PLACE_BYTES = 400
COMMIT_BYTES = 400
"""Memory of a partition added to a transaction, and of a staged commit. Measured."""
ENTRY_BYTES = 600
"""Memory of an entry without its strings: key, value, and dictionary slots. Measured."""
