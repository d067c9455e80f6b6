"""A fetch of partitions that can all be served."""

from collections.abc import Sequence
from typing import Any

from braidlog.partition.fetch.fetch import Fetch, Wanted
from braidlog.partition.fetch.record_reader import Fetched


async def fetch_all(fetch: Fetch, wanted: Sequence[Wanted], **limits: Any) -> list[Fetched]:
    """The outcomes; the first that is an error is raised."""
    found = []
    for outcome in await fetch.fetch_each(wanted, **limits):
        if not isinstance(outcome, Fetched):
            raise outcome
        found.append(outcome)
    return found
