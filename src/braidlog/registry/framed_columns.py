"""Decodes values that begin with schema ids to a column: values with the same id are decoded together.

Each prefix is looked up once. A value without a decoder is null, and its error gives the reason. Does not handle:
formats, finding schemas.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from braidlog.registry import framing
from braidlog.registry.errors import WHY_CHARS_MAX, ColumnTypeError, RegistryError
from braidlog.registry.schemas import AVRO
from braidlog.registry.value_columns import Decode, Errors

Find = Callable[[bytes], Decode]
"""Returns the decoder for a prefix; raises `RegistryError` or `ColumnTypeError` if there is none."""


class Framed:
    """Decodes values of one format to a column of one type."""

    def __init__(self, format_: str, kind: pa.DataType, find: Find) -> None:
        self._has_indexes = format_ != AVRO
        self._kind = kind
        self._find = find
        self._known: dict[bytes, Decode | str] = {}
        """The prefix of a value → its decoder, or the reason why there is none."""

    def __call__(self, values: pa.Array) -> tuple[pa.Array, Errors]:
        rows: list[bytes | None] = values.to_pylist()
        errors: Errors = [None] * len(rows)
        groups = self._groups(rows, errors)
        parts = []
        for head, places in groups.items():
            decode = self._decoder(head) if head else None
            if callable(decode):
                # A value with a prefix is not null.
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
        """Group rows by prefix; b"" for null values, and values without an id."""
        groups: dict[bytes, list[int]] = {}
        for at, value in enumerate(rows):
            head = b""
            if value is not None:
                try:
                    framing.id_of(value)
                    head = value[: framing.read_indexes(value)[1] if self._has_indexes else framing.BYTES]
                except framing.FramingError as error:
                    errors[at] = str(error)
            groups.setdefault(head, []).append(at)
        return groups

    def _decoder(self, head: bytes) -> Decode | str:
        if head not in self._known:
            try:
                self._known[head] = self._find(head)
            except (RegistryError, ColumnTypeError) as error:
                self._known[head] = f"schema {framing.id_of(head)}: {error}"[:WHY_CHARS_MAX]
        return self._known[head]


def _in_order(parts: list[pa.Array], places: list[list[int]], kind: pa.DataType) -> pa.Array:
    """Return the groups' rows in their original order."""
    if len(parts) < 2:
        return parts[0] if parts else pa.nulls(0, kind)
    order = pa.array([at for group in places for at in group], pa.int64())
    return pa.concat_arrays(parts).take(pc.sort_indices(order))
