"""Quotas: how many bytes per second a principal may append and fetch, and how much of the loop's time it or its address may take.

Knows: rates, and how long someone has to pause. Refuses to know: clocks (time is an argument), sockets, what the bytes are.
Invariants: over any time t a principal moves at most `rate x (t + burst_seconds)` bytes plus one request; the pause it is told is
exactly as long as that takes; unlimited is the default and costs nothing.

A request that is over is served and pauses the next one: who is slowed down never loses anything.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import UNLIMITED

BURST_SECONDS = 1.0
PAUSE_SECONDS_MAX = 30.0
"""A pause is no longer than this, whatever was moved: a connection must not look dead."""
BUCKETS_MAX = 100_000
_RATE_END = 2**63
PERCENT_MIN, PERCENT_MAX = 0.1, 100.0
K = TypeVar("K", bound=Hashable)


class Direction(StrEnum):
    APPEND = "append"
    FETCH = "fetch"
    TIME = "time"
    """Seconds of the loop's processor time, and not bytes."""


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes per second, and percent of the loop's time; -1 means no limit."""

    append_bytes_per_second: int = UNLIMITED
    fetch_bytes_per_second: int = UNLIMITED
    request_percent: float = UNLIMITED

    def __post_init__(self) -> None:
        for rate in (self.append_bytes_per_second, self.fetch_bytes_per_second):
            if rate != UNLIMITED and rate < 1:
                raise BrokerError(Reason.INVALID_SETTING, f"a rate is at least 1 byte per second, or -1, not {rate}")
        check_percent(self.request_percent)

    def of(self, direction: Direction) -> float:
        if direction is Direction.TIME:
            return _seconds_per_second(self.request_percent)
        return self.append_bytes_per_second if direction is Direction.APPEND else self.fetch_bytes_per_second

    def with_rates(self, rates: Mapping[str, float]) -> "Rates":
        """The same but for these, by the names of the fields."""
        fields = {name: value if name == "request_percent" else _whole(value) for name, value in rates.items()}
        return msgspec.structs.replace(self, **fields)


def _whole(rate: float) -> int:
    if not math.isfinite(rate) or rate != int(rate) or rate >= _RATE_END:
        raise BrokerError(Reason.INVALID_SETTING, f"a rate is a whole number of bytes per second, not {rate:g}")
    return int(rate)


def check_percent(percent: float) -> None:
    if percent != UNLIMITED and not PERCENT_MIN <= percent <= PERCENT_MAX:
        text = f"a share of the loop's time is {PERCENT_MIN:g} to {PERCENT_MAX:g} percent, or -1, not {percent:g}"
        raise BrokerError(Reason.INVALID_SETTING, text)


def _seconds_per_second(percent: float) -> float:
    return percent if percent == UNLIMITED else percent / 100


class TokenBucket:
    """Tokens are bytes, seconds or requests. They come at `rate` up to one burst; a request may leave a debt: the pause."""

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
        """Take one token if there is one (0), else none: return the seconds until there will be."""
        self._refill(now)
        if self._tokens < 1:
            return (1 - self._tokens) / self.rate
        self._tokens -= 1
        return 0.0

    def take(self, count: float, now: float) -> float:
        """Take `count`; return the seconds to pause before the next request."""
        self._refill(now)
        self._tokens -= count
        # What a pause at its longest cannot pay off is forgiven, else one huge request would close the door for hours.
        self._tokens = max(self._tokens, -PAUSE_SECONDS_MAX * self.rate)
        return max(-self._tokens / self.rate, 0.0)


class Buckets(Generic[K]):
    """One bucket for each who was heard of lately."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[K, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def get(self, key: K, make: Callable[[], TokenBucket]) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = make()
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)  # the one not heard of for longest: its debt is paid by now
        else:
            self._buckets.move_to_end(key)
        return bucket


class Quotas:
    """The buckets of this node. All connections of a principal share its buckets, all of an address that of the address.

    What was set at run time (`administer`) goes before the configuration, rate by rate, and who is named before who is not.
    """

    def __init__(
        self,
        default: Rates | None = None,
        principals: Mapping[str, Rates] | None = None,
        address_request_percent: float = UNLIMITED,
    ) -> None:
        self._configured_default = default or Rates()
        self._configured = dict(principals or {})
        self._address_rate = _seconds_per_second(address_request_percent)
        self._addresses: Buckets[str] = Buckets()
        self.administer({})

    def administer(self, added: Mapping[str, Mapping[str, float]]) -> None:
        """These rates were set at run time, by principal; "": for all who have none of their own. Debts are forgiven."""
        self._buckets: Buckets[tuple[str, Direction]] = Buckets()
        self._added = added
        self._default = self._configured_default.with_rates(added.get("", {}))
        self._found: dict[str, Rates] = {}
        every = (self._configured_default, *self._configured.values())
        is_timed = any(rates.request_percent != UNLIMITED for rates in every)
        is_timed |= any("request_percent" in rates for rates in added.values())
        self.counts_time = is_timed or self._address_rate != UNLIMITED
        """Whether anyone's time is limited: else nobody looks at the clock."""
        self.is_unlimited = not added and not self.counts_time and all(rates == Rates() for rates in every)

    def _rates_of(self, principal: str) -> Rates:
        if principal not in self._added and principal not in self._configured:
            return self._default
        rates = self._found.get(principal)
        if rates is None:
            rates = self._found[principal] = self._given(principal, self._default)
        return rates

    def _given(self, principal: str, otherwise: Rates) -> Rates:
        return self._configured.get(principal, otherwise).with_rates(self._added.get(principal, {}))

    def limited(self) -> dict[str | None, Rates]:
        """By principal, what each was given where that is limited; None: all the others."""
        names = sorted({*self._configured, *self._added} - {""})
        given = ((None, self._default), *((name, self._given(name, Rates())) for name in names))
        return {name: rates for name, rates in given if rates != Rates()}

    def take_time(self, principal: str, address: str, seconds: float, now: float) -> float:
        """So much of the loop's time went to a request; return the seconds its principal or its address has to pause."""
        pause = self.take(principal, Direction.TIME, seconds, now)
        if self._address_rate == UNLIMITED:
            return pause
        bucket = self._addresses.get(address, lambda: TokenBucket(self._address_rate, now))
        return max(pause, bucket.take(seconds, now))

    def take(self, principal: str, direction: Direction, count: float, now: float) -> float:
        """`count` bytes were moved; return the seconds this principal has to pause, 0 for none."""
        rate = self._rates_of(principal).of(direction)
        if rate == UNLIMITED:
            return 0.0
        return self._buckets.get((principal, direction), lambda: TokenBucket(rate, now)).take(count, now)
