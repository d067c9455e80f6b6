"""Findings about a key-value store, for people and programs."""

import msgspec

from braidlog.kv.engine.values import quoted
from braidlog.tools.findings import Severity

KEYS_TOLD_MAX = 100


class StoreFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem. `file` is in the store's folder; bytes are [position, end)."""

    severity: Severity
    file: str
    why: str
    meaning: str
    position: int = 0
    end: int = 0
    mutations_lost: int | None = 0
    """None: unknown."""
    keys: list[str] = []
    """Affected keys, as far as the damaged bytes are readable; the first hundred."""


def keys_told(keys: list[bytes]) -> list[str]:
    return [quoted(key) for key in list(dict.fromkeys(keys))[:KEYS_TOLD_MAX]]


def missing(file: str, first: int, last: int, why: str) -> StoreFinding:
    """Return a finding about mutations that no file contains."""
    return StoreFinding(
        severity=Severity.DAMAGE,
        file=file,
        why=why,
        meaning=f"mutations {first} to {last} are lost",
        mutations_lost=last - first + 1,
    )


class StoreReport(msgspec.Struct, kw_only=True):
    """Result of verifying a store."""

    folder: str
    sound: bool
    """Whether opening succeeds completely."""
    refused: str | None
    """Why opening fails, or which keys it refuses."""
    keys: int
    """Number of readable keys."""
    sequence: int
    """Number of the last known mutation."""
    findings: list[StoreFinding]
    next_command: str | None = None
