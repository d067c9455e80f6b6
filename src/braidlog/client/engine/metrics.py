"""What a producer and a consumer have done so far, in numbers that only grow: whoever wants rates takes them now and then."""

import msgspec


class ProducerMetrics(msgspec.Struct, frozen=True):
    """`records` were taken by `send`; each is acknowledged, failed or on its way. `bytes` are those acknowledged."""

    records: int
    acknowledged: int
    failed: int
    bytes: int
    batches: int
    attempts: int
    """Of batches: so many more than `batches` were sent again."""


class ConsumerMetrics(msgspec.Struct, frozen=True):
    """`records` were handed out; `bytes` of keys, values and headers came by `fetches` that had some. `joins` of its group."""

    records: int
    bytes: int
    fetches: int
    joins: int
