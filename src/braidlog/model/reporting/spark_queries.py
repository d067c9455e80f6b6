"""Reports of Spark's streaming queries to a node's admin port."""

from typing import Any, Literal

import msgspec


class QueryProgress(msgspec.Struct, frozen=True):
    """One report. `progress` is Spark's StreamingQueryProgress, unchanged."""

    query: str
    run: str
    name: str | None = None
    pipeline: str | None = None
    state: Literal["running", "stopped", "failed"] = "running"
    error: str | None = None
    progress: dict[str, Any] | None = None
    tables: dict[str, str] = {}
    """Where the pipeline's tables are, by name: a folder, a URI, or a name in a catalog."""
