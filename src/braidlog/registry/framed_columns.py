"""Columns of values that begin with ids of schemas: those of each id are read together.

Knows: how rows are grouped by what they begin with, and put in order again. Refuses to know: formats, where a schema comes from.
Invariant: what reads the values of one beginning is looked for once; a value that nothing reads is null, and its error says why.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from braidlog.registry import framing
from braidlog.registry.errors import WHY_CHARS_MAX, ColumnTypeError, RegistryError
from braidlog.registry.schemas import AVRO
from braidlog.registry.value_columns import Decode, Errors

Find = Callable[[bytes], Decode]
"""What reads the values that begin so; `RegistryError` or `ColumnTypeError` if nothing does."""


class Framed:
    """Reads values of one format as a column of one type."""

    def __init__(self, format_: str, kind: pa.DataType, find: Find) -> None:
        self._has_indexes = format_ != AVRO
        self._kind = kind
        self._find = find
        self._known: dict[bytes, Decode | str] = {}
        """What begins a value → what reads it, or why nothing does."""

    def __call__(self, values: pa.Array) -> tuple[pa.Array, Errors]:
        rows: list[bytes | None] = values.to_pylist()
        errors: Errors = [None] * len(rows)
        groups = self._groups(rows, errors)
        parts = []
        for head, places in groups.items():
            decode = self._decoder(head) if head else None
            if callable(decode):
                # What has a head is no null.
                part, wrong = decode([value[len(head) :] for at in places if (value := rows[at]) is not None])
                for at, why in zip(places, wrong, strict=True):
                    errors[at] = why
            else:
                part = pa.nulls(len(places), self._kind)
                for at in places:
                    errors[at] = errors[at] or decode
            parts.append(part)
        return _in_order(parts, list(groups.values()), self._kind), errors

    def _groups(self, rows: list[bytes | None], errors: Errors) -> dict[bytes, list[int]]:
        """Rows by what they begin with; b"" of those that are null, or have no id."""
        found: dict[bytes, list[int]] = {}
        for at, value in enumerate(rows):
            head = b""
            if value is not None:
                try:
                    framing.id_of(value)
                    head = value[: framing.read_indexes(value)[1] if self._has_indexes else framing.BYTES]
                except framing.FramingError as error:
                    errors[at] = str(error)
            found.setdefault(head, []).append(at)
        return found

    def _decoder(self, head: bytes) -> Decode | str:
        if head not in self._known:
            try:
                self._known[head] = self._find(head)
            except (RegistryError, ColumnTypeError) as error:
                self._known[head] = f"schema {framing.id_of(head)}: {error}"[:WHY_CHARS_MAX]
        return self._known[head]


def _in_order(parts: list[pa.Array], places: list[list[int]], kind: pa.DataType) -> pa.Array:
    """Groups of rows as they stood."""
    if len(parts) < 2:
        return parts[0] if parts else pa.nulls(0, kind)
    order = pa.array([at for group in places for at in group], pa.int64())
    return pa.concat_arrays(parts).take(pc.sort_indices(order))
