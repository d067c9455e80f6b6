"""The last hour, for plots: sampled by this process, whether somebody looks or not.

Knows: rates of the node and the lag of its groups at each sample. Refuses to know: who looks. Invariants: no more than
`SAMPLES_MAX` are kept, of no more than `GROUPS_MAX` groups each; all of it is memory: a new console begins anew.
"""

import asyncio
import contextlib
from collections import defaultdict, deque
from typing import Any, Final, NamedTuple

from braidlog.console.node_client import Node, NodeError
from braidlog.console.pages import rates

SAMPLE_SECONDS: Final = 10.0
SAMPLES_MAX: Final = 360
"""An hour."""
GROUPS_MAX: Final = 200


class Sample(NamedTuple):
    t: float
    rates: dict[str, float]
    lags: dict[str, int]


class PlotHistory:
    """One for this process; `run` it as long as that lives."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    async def run(self) -> None:
        before = None
        while True:
            with contextlib.suppress(NodeError):
                now = await self._node.cluster.now()
                lags: dict[str, int] = defaultdict(int)
                for each in now.lags:
                    if each.group in lags or len(lags) < GROUPS_MAX:
                        lags[each.group] += each.lag
                if before is not None and now.taken_ms > before.taken_ms:
                    self._samples.append(Sample(now.taken_ms / 1000, rates(now, before), dict(lags)))
                before = now
            await asyncio.sleep(SAMPLE_SECONDS)

    def rates(self) -> list[dict[str, Any]]:
        return [{"t": each.t, **each.rates} for each in self._samples]

    def lag(self, group: str) -> list[dict[str, Any]]:
        return [{"t": each.t, "lag": each.lags[group]} for each in self._samples if group in each.lags]
