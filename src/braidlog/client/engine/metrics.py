"""Counters of a producer and of a consumer, which only increase: callers compute rates from two readings."""

import msgspec


class ProducerMetrics(msgspec.Struct, frozen=True):
    """`records` were accepted by `send`; each is acknowledged, failed or in flight. `bytes` are those acknowledged."""

    records: int
    acknowledged: int
    failed: int
    bytes: int
    batches: int
    attempts: int
    """Of batches; the excess over `batches` is retries."""


class ConsumerMetrics(msgspec.Struct, frozen=True):
    """`records` were returned; `bytes` of keys, values and headers came in non-empty `fetches`. `joins` counts group
    joins."""

    records: int
    bytes: int
    fetches: int
    joins: int
