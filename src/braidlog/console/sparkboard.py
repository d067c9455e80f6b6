"""Spark queries that report in: what each of them said last.

Knows: the last report of each query. Refuses to know: Spark (a report's `progress` is kept as it came).
Invariants: no more than `QUERIES_MAX` are kept, the ones heard of last; a report is bounded; all of it is memory:
a new console begins anew.
"""

from collections import OrderedDict
from typing import Any, Final, Literal

import msgspec

QUERIES_MAX: Final = 200
REPORT_BYTES_MAX: Final = 256 * 1024


class Progress(msgspec.Struct, frozen=True):
    """What a query says of itself. `progress` is Spark's own StreamingQueryProgress."""

    query: str
    run: str
    name: str | None = None
    pipeline: str | None = None
    state: Literal["running", "stopped", "failed"] = "running"
    error: str | None = None
    progress: dict[str, Any] | None = None


class Heard(msgspec.Struct, frozen=True):
    """A report, and when it came."""

    query: str
    run: str
    name: str | None
    pipeline: str | None
    state: str
    error: str | None
    progress: dict[str, Any] | None
    heard_ms: int
    reports: int


class Board:
    def __init__(self) -> None:
        self._queries: OrderedDict[str, Heard] = OrderedDict()

    def report(self, body: bytes, now_ms: int) -> Heard:
        """`msgspec.ValidationError` if it is no report."""
        if len(body) > REPORT_BYTES_MAX:
            raise msgspec.ValidationError(f"a report has at most {REPORT_BYTES_MAX} bytes")
        said = msgspec.json.decode(body, type=Progress)
        before = self._queries.pop(said.query, None)
        # The last word of a query need not repeat what it did: its numbers stay.
        progress = said.progress if said.progress is not None or before is None else before.progress
        count = 1 if before is None else before.reports + 1
        heard = Heard(said.query, said.run, said.name, said.pipeline, said.state, said.error, progress, now_ms, count)
        self._queries[said.query] = heard
        if len(self._queries) > QUERIES_MAX:
            self._queries.popitem(last=False)
        return heard

    def queries(self) -> list[Heard]:
        """Heard of last first."""
        return list(reversed(self._queries.values()))
