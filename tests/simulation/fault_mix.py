"""What goes wrong in one run: each seed draws its own mix, and most mixes leave most faults out (swarm testing).

Faults by time come at random moments; faults by event end a process right after something, or half-way through it.
"""

from random import Random

import msgspec
from tests.simulation.network import Conditions
from tests.simulation.virtual_time import US_PER_MS

from braidlog.model.settings import UNLIMITED, Flush, TopicSettings

TIMED = (
    "kill",
    "power",
    "wipe",
    "pause",
    "cut",
    "isolate",
    "reset",
    "accuse",
    "deaf",
    "etcd away",
    "etcd away for one",
    "reassign",
    "flip",
)
EVENTS = ("acknowledgement", "write", "proposal", "truncation", "registered")


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """One run's settings."""

    seed: int
    settings: TopicSettings
    flush_on_ack: bool
    faults: dict[str, float]
    """Weights of the faults by time."""
    fault_every_us: int
    after_events: dict[str, float]
    """How likely a process ends when that happens."""
    conditions: Conditions
    lag_ms_max: int
    snapshot_every: int
    drift: float
    think_us: int
    sync_slow_rate: float
    unknown_rate: float
    producers: int
    weak_producers: int
    """Those who ask for acks=1: what only their leader has is cut when another one leads."""
    readers: int
    etcd_us: int
    nodes: int
    partitions: int
    delete_every_us: int
    """Somebody lets a partition begin later, so often; 0 is never."""
    duration_us: int = 4_000 * US_PER_MS

    def sync_us(self, draw: Random) -> int:
        """How long a sync takes."""
        if self.sync_slow_rate and draw.random() < self.sync_slow_rate:
            return draw.randrange(20_000, 200_000)
        return draw.randrange(200, 2_000)


def drawn(seed: int, draw: Random) -> Mix:
    flush_on_ack = draw.random() < 0.75
    faults = {name: draw.random() for name in TIMED if draw.random() < 0.4}
    after = {name: draw.choice((0.002, 0.01, 0.05)) for name in EVENTS if draw.random() < 0.25}
    if "truncation" in after:
        after["truncation"] = 0.3
    conditions = Conditions(
        delay_us=draw.choice((200, 500, 5_000)),
        slow_rate=draw.choice((0.0, 0.0, 0.02, 0.2)),
        slow_us=draw.choice((20_000, 300_000)),
        loss_rate=draw.choice((0.0, 0.0, 0.01, 0.1)),
        twice_rate=draw.choice((0.0, 0.0, 0.05)),
    )
    return Mix(
        seed=seed,
        settings=_settings(draw, flush_on_ack=flush_on_ack),
        flush_on_ack=flush_on_ack,
        faults=faults,
        fault_every_us=draw.choice((100, 250, 600)) * US_PER_MS,
        after_events=after,
        conditions=conditions,
        lag_ms_max=draw.choice((300, 1_000, 10_000)),
        snapshot_every=draw.choice((1, 3, 20)),
        drift=draw.choice((0.0, 0.01, 0.1)),
        think_us=draw.choice((5, 30, 100)) * US_PER_MS,
        sync_slow_rate=draw.choice((0.0, 0.0, 0.05, 0.3)),
        unknown_rate=draw.choice((0.0, 0.0, 0.05, 0.3)),
        producers=draw.choice((1, 2, 4)),
        weak_producers=draw.choice((0, 0, 1)),
        readers=draw.choice((1, 2)),
        etcd_us=draw.choice((500, 2_000, 30_000)),
        nodes=4 if "reassign" in faults and draw.random() < 0.4 else 3,
        partitions=draw.choice((1, 1, 2, 3)),
        delete_every_us=draw.choice((0, 0, 200, 700)) * US_PER_MS,
    )


def _settings(draw: Random, *, flush_on_ack: bool) -> TopicSettings:
    kind = draw.choice(("kept", "kept", "retention", "compaction"))
    return TopicSettings(
        flush=Flush.ACK if flush_on_ack else Flush.OS,
        flush_window_bytes=4096,
        segment_bytes=draw.choice((4096, 16384, 1 << 30)),
        segment_ms=draw.choice((200, 1_000)),
        retention_ms=draw.choice((300, 1_500)) if kind == "retention" else UNLIMITED,
        compact=kind == "compaction",
        delete=kind != "compaction",
        delete_retention_ms=draw.choice((0, 300)),
    )
