"""Samples of the last hour for plots: rates of the node and lag of its groups.

Sampling does not depend on open pages. At most `SAMPLES_MAX` samples of `GROUPS_MAX` groups are kept, in memory only.
"""

import asyncio
import contextlib
from collections import defaultdict, deque
from typing import Any, Final, NamedTuple

from braidlog.console.node_client import Node, NodeError
from braidlog.console.pages import rates

SAMPLE_SECONDS: Final = 10.0
SAMPLES_MAX: Final = 360
"""One hour."""
GROUPS_MAX: Final = 200


class Sample(NamedTuple):
    t: float
    rates: dict[str, float]
    lags: dict[str, int]


class PlotHistory:
    """The samples of this process; `run` until it ends."""

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
