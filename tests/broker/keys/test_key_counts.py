"""Counts of keys are of all nodes, or are refused; of three real nodes in `tests/spark/kv/test_slots.py`."""

import msgspec
from tests.broker.keys.test_clustered_keys import member
from tests.refusals import refused_with

from braidlog.broker.forwarding import Call
from braidlog.broker.keys.key_counts import CALL
from braidlog.kv.engine.operations import Stats
from braidlog.model.errors import NothingDoneError, Reason


class Others:
    """The other nodes: what each has, or nothing if it does not answer."""

    def __init__(self, told: dict[int, bytes]) -> None:
        self.told = told

    async def call(self, node: int, call: Call, seconds: float) -> bytes:
        assert call.name == CALL
        if node not in self.told:
            raise NothingDoneError(Reason.UNAVAILABLE, "it is away")
        return self.told[node]


def counts(keys: int) -> bytes:
    figures = dict.fromkeys(Stats.__struct_fields__, 1) | {
        "keys": keys,
        "uptime_seconds": 1000,
        "snapshot_taken_ms": keys,
    }
    return msgspec.msgpack.encode(figures)


def test_keys_in_slots_are_counted_on_all_nodes() -> None:
    one = member("1")
    one.node.run(one.keys.ensure_slots())
    services, others = one.node.services, Others({2: counts(5), 3: counts(7)})
    services.forwarding.calls = others
    found = one.node.run(services.key_counts.gathered())
    assert (found.keys, found.mutations, found.snapshot_taken_ms) == (12, 2, 7)
    assert found.uptime_seconds < 1000, "its own"
    assert msgspec.msgpack.decode(one.node.run(services.key_counts.handle_call(b"")), type=Stats).keys == 0, "its part"
    for wrong in ({2: counts(5)}, {2: counts(5), 3: b"\xc1"}):
        others.told = wrong
        with refused_with(Reason.TIMED_OUT, match="node 3 does not report its part of the counts"):
            one.node.run(services.key_counts.gathered())
