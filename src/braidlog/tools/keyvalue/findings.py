"""What is wrong with a key-value store, in words a person and a program can act on."""

import msgspec

from braidlog.kv.engine.values import quoted
from braidlog.tools.findings import Severity

KEYS_TOLD_MAX = 100


class StoreFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be. `file` is in the store's folder; bytes are [position, end)."""

    severity: Severity
    file: str
    why: str
    meaning: str
    position: int = 0
    end: int = 0
    mutations_lost: int | None = 0
    """None: nobody can tell how many."""
    keys: list[str] = []
    """Whose they are, as far as it can be read in the damaged bytes; the first hundred."""


def keys_told(keys: list[bytes]) -> list[str]:
    return [quoted(key) for key in list(dict.fromkeys(keys))[:KEYS_TOLD_MAX]]


def missing(file: str, first: int, last: int, why: str) -> StoreFinding:
    """Mutations that no file has."""
    return StoreFinding(
        severity=Severity.DAMAGE,
        file=file,
        why=why,
        meaning=f"mutations {first} to {last} are lost",
        mutations_lost=last - first + 1,
    )


class StoreReport(msgspec.Struct, kw_only=True):
    """What a check of a store found."""

    folder: str
    sound: bool
    """Whether an opening takes all of it."""
    refused: str | None
    """Why it refuses it, or which keys."""
    keys: int
    """Those that can be read."""
    sequence: int
    """The last mutation that is known of."""
    findings: list[StoreFinding]
    next_command: str | None = None
