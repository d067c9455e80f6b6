"""Quotas: limits how many bytes per second a user or client id may append and fetch, and its share of the event
loop's time.

Does not handle: clocks (time is an argument), sockets, the content of requests.
Invariants: over any time t, the clients that share a rate move at most `rate x (t + burst_seconds)` bytes plus
one request each. The pause that they get is exactly as long as that takes. Unlimited is the default and costs
nothing.

A request over the limit is served and delays the next one: a throttled client never loses data.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import msgspec

from braidlog.cluster.metadata.events import QuotaEntity
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import UNLIMITED

BURST_SECONDS = 1.0
PAUSE_SECONDS_MAX = 30.0
"""The longest pause, however much data was moved: a throttled connection must not look dead."""
BUCKETS_MAX = 100_000
CLIENTS_KEPT_MAX = 10_000
_RATE_END = 2**63
PERCENT_MIN, PERCENT_MAX = 0.1, 100.0
K = TypeVar("K", bound=Hashable)


class Direction(StrEnum):
    APPEND = "append"
    FETCH = "fetch"
    TIME = "time"
    """Seconds of the event loop's processor time, not bytes."""


FIELDS = {
    Direction.APPEND: "append_bytes_per_second",
    Direction.FETCH: "fetch_bytes_per_second",
    Direction.TIME: "request_percent",
}
CONNECTIONS = "connections_per_second"
"""A rate of addresses only."""
DEFAULT_USER, DEFAULT_ADDRESS = QuotaEntity(user=""), QuotaEntity(address="")


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes per second, and percent of the event loop's time; -1 means unlimited."""

    append_bytes_per_second: int = UNLIMITED
    fetch_bytes_per_second: int = UNLIMITED
    request_percent: float = UNLIMITED

    def __post_init__(self) -> None:
        for rate in (self.append_bytes_per_second, self.fetch_bytes_per_second):
            if rate != UNLIMITED and rate < 1:
                raise BrokerError(Reason.INVALID_SETTING, f"a rate is at least 1 byte per second, or -1, not {rate}")
        check_percent(self.request_percent)

    def rate(self, direction: Direction) -> float:
        if direction is Direction.TIME:
            return _seconds_per_second(self.request_percent)
        return self.append_bytes_per_second if direction is Direction.APPEND else self.fetch_bytes_per_second

    def with_rates(self, rates: Mapping[str, float]) -> "Rates":
        """Return a copy with these rates, by the names of the fields."""
        fields = {name: value if name == "request_percent" else _whole(value, "bytes") for name, value in rates.items()}
        return msgspec.structs.replace(self, **fields)


def _whole(rate: float, of_what: str) -> int:
    if not math.isfinite(rate) or rate != int(rate) or rate >= _RATE_END:
        raise BrokerError(Reason.INVALID_SETTING, f"a rate is a whole number of {of_what} per second, not {rate:g}")
    return int(rate)


def check_percent(percent: float) -> None:
    if percent != UNLIMITED and not PERCENT_MIN <= percent <= PERCENT_MAX:
        text = f"a share of the loop's time is {PERCENT_MIN:g} to {PERCENT_MAX:g} percent, or -1, not {percent:g}"
        raise BrokerError(Reason.INVALID_SETTING, text)


def _seconds_per_second(percent: float) -> float:
    return percent if percent == UNLIMITED else percent / 100


class TokenBucket:
    """Tokens are bytes, seconds or requests. They arrive at `rate`, up to one burst. A request may leave a debt: the
    pause."""

    __slots__ = ("_at", "_burst", "_tokens", "rate")

    def __init__(self, rate: float, now: float, burst: float | None = None) -> None:
        self.rate = rate
        self._tokens = self._burst = rate * BURST_SECONDS if burst is None else burst
        self._at = now

    def _refill(self, now: float) -> None:
        elapsed = max(now - self._at, 0.0)
        self._at = max(now, self._at)
        self._tokens = min(self._tokens + elapsed * self.rate, self._burst)

    def take_whole(self, now: float) -> float:
        """Take one token and return 0; if none is available, return the seconds until one is."""
        self._refill(now)
        if self._tokens < 1:
            return (1 - self._tokens) / self.rate
        self._tokens -= 1
        return 0.0

    def consume(self, count: float, now: float) -> float:
        """Take `count`; return the seconds to pause before the next request."""
        self._refill(now)
        self._tokens -= count
        # Debt beyond the longest pause is forgiven: else one huge request would block the client for hours.
        self._tokens = max(self._tokens, -PAUSE_SECONDS_MAX * self.rate)
        return max(-self._tokens / self.rate, 0.0)


class Buckets(Generic[K]):
    """One bucket for each recent key."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[K, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def get(self, key: K, rate: float, now: float, burst: float | None = None) -> TokenBucket:
        """Return the key's bucket; a new one without debt if its rate has changed."""
        bucket = self._buckets.get(key)
        if bucket is not None and bucket.rate == rate:
            self._buckets.move_to_end(key)
            return bucket
        bucket = self._buckets[key] = TokenBucket(rate, now, burst)
        self._buckets.move_to_end(key)
        if len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)  # the least recently used: its debt is paid by now
        return bucket


class RateFound(NamedTuple):
    """The effective rate of a client, and the entity that shares it. None: any."""

    rate: float
    principal: str | None = None
    client_id: str | None = None


class Quotas:
    """The token buckets of this node, for principals, client ids and addresses; each covers all connections of its
    entity.

    For each rate, the most specific entity decides, in Kafka's order: a client id of a user, a user, a client id
    of any user; at each step, a named entity before the default. Rates set at run time (`administer`) replace the
    configuration's, which are rates of users and addresses.
    """

    def __init__(
        self,
        default: Rates | None = None,
        principals: Mapping[str, Rates] | None = None,
        address_request_percent: float = UNLIMITED,
        address_connections_per_second: float = UNLIMITED,
    ) -> None:
        self._configured = {DEFAULT_USER: default or Rates()}
        self._configured |= {QuotaEntity(name): rates for name, rates in (principals or {}).items()}
        self._address_rate = _seconds_per_second(address_request_percent)
        self._address_connections = address_connections_per_second
        self._addresses: Buckets[str] = Buckets()
        self._buckets: Buckets[tuple[str | None, str | None, Direction]] = Buckets()
        self.administer({})

    def administer(self, added: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace the rates set at run time. A client whose rate changes starts without debt."""
        self._added = added
        self._found: dict[tuple[str, str, Direction], RateFound] = {}
        every = self._configured.values()
        is_timed = any(rates.request_percent != UNLIMITED for rates in every)
        is_timed |= any("request_percent" in rates for rates in added.values())
        self.counts_time = is_timed or self._address_rate != UNLIMITED
        """Whether any rate limits time; if none does, requests are not timed."""
        is_added = any(entity.address is None for entity in added)
        self.is_unlimited = not is_added and not self.counts_time and all(rates == Rates() for rates in every)

    def connections_per_second(self, address: str) -> float:
        """Return how many connections per second an address may open."""
        for entity in (QuotaEntity(address=address), DEFAULT_ADDRESS):
            rate = self._added.get(entity, {}).get(CONNECTIONS)
            if rate is not None:
                return rate
        return self._address_connections

    def _share_of(self, principal: str, client_id: str, direction: Direction) -> RateFound:
        key = (principal, client_id, direction)
        share = self._found.get(key)
        if share is None:
            if len(self._found) >= CLIENTS_KEPT_MAX:
                self._found.clear()  # clients choose their ids: an evicted one is found again by its next request
            share = self._found[key] = self._find(principal, client_id, direction)
        return share

    def _find(self, principal: str, client_id: str, direction: Direction) -> RateFound:
        name = FIELDS[direction]
        for user in (principal, ""):
            for of_user in (QuotaEntity(user, client_id), QuotaEntity(user, "")):
                if name in self._added.get(of_user, ()):
                    return RateFound(_rate(self._added[of_user], name), principal, client_id)
            entity = QuotaEntity(user)
            if name in self._added.get(entity, ()):
                return RateFound(_rate(self._added[entity], name), principal)
            rates = self._configured.get(entity)
            # A user named in the configuration without a limit has none; others may have a less specific one.
            if rates is not None and (user or rates.rate(direction) != UNLIMITED):
                return RateFound(rates.rate(direction), principal)
        for of_all in (QuotaEntity(client_id=client_id), QuotaEntity(client_id="")):
            if name in self._added.get(of_all, ()):
                return RateFound(_rate(self._added[of_all], name), None, client_id)
        return RateFound(UNLIMITED)

    def limited(self) -> dict[QuotaEntity, dict[str, float]]:
        """Return the rates of each entity, by their names in the configuration."""
        given: dict[QuotaEntity, dict[str, float]] = {}
        for entity, rates in self._configured.items():
            named = {name: float(getattr(rates, name)) for name in FIELDS.values()}
            given[entity] = {name: rate for name, rate in named.items() if rate != UNLIMITED}
        if self._address_connections != UNLIMITED:
            given[DEFAULT_ADDRESS] = {CONNECTIONS: self._address_connections}
        for entity, added in self._added.items():
            given[entity] = {**given.get(entity, {}), **added}
        return {entity: rates for entity, rates in given.items() if rates}

    def take_time(self, principal: str, address: str, seconds: float, now: float, client_id: str = "") -> float:
        """Charge a request's time on the event loop; return the seconds that its client or address has to pause."""
        pause = self.charge(principal, Direction.TIME, seconds, now, client_id)
        if self._address_rate == UNLIMITED:
            return pause
        return max(pause, self._addresses.get(address, self._address_rate, now).consume(seconds, now))

    def charge(self, principal: str, direction: Direction, count: float, now: float, client_id: str = "") -> float:
        """Charge `count` bytes; return the seconds that the client has to pause, 0 for none."""
        share = self._share_of(principal, client_id, direction)
        if share.rate == UNLIMITED:
            return 0.0
        bucket = self._buckets.get((share.principal, share.client_id, direction), share.rate, now)
        return bucket.consume(count, now)


def _rate(rates: Mapping[str, float], name: str) -> float:
    return _seconds_per_second(rates[name]) if name == "request_percent" else rates[name]


def check_rates(entity: QuotaEntity, rates: Mapping[str, float]) -> None:
    """Raise if an entity cannot have these rates."""
    for name, rate in rates.items():
        if name == CONNECTIONS:
            _whole(rate, "connections")
        else:
            Rates().with_rates({name: rate})
        if (name == CONNECTIONS) is (entity.address is None):
            raise BrokerError(
                Reason.INVALID_SETTING, "addresses have a rate of connections and no other, and only they have it"
            )
