"""Decode values of records to JSON by the schemas of this node's registry.

An unknown schema id is looked up at most once in `ASK_SECONDS`. If a value cannot be decoded, or the registry does not
answer, the record is shown as it is.
"""

import contextlib
from collections.abc import Iterable
from typing import Final

from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.console.registry.schema_registry import Registry
from braidlog.model.clock import SystemClock
from braidlog.registry import framing
from braidlog.registry.errors import Code, RegistryError
from braidlog.registry.schemas import Reference, Schema
from braidlog.registry.value_json import SchemaValues, UndecodedError

ASK_SECONDS: Final = 1.0
MISSING_MAX: Final = 10_000


class RecordValues:
    """Decoder of record values of this process."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._clock = SystemClock()
        self._missing: dict[int, float] = {}
        """Unknown schema ids, with the time of the last lookup."""
        self._values = SchemaValues(self._schema_of, self._find)

    async def learn(self, records: Iterable[ConsumedRecord]) -> None:
        """Fetch the schemas that the records refer to, before decoding."""
        named = {framing.id_of(each.value) for each in records if each.value is not None and framing.has_id(each.value)}
        now = self._clock.monotonic()
        unknown = named - self._registry.known.schemas.keys()
        if all(now - self._missing.get(each, -ASK_SECONDS) < ASK_SECONDS for each in unknown):
            return
        with contextlib.suppress(RegistryError):
            await self._registry.fresh()
        if len(self._missing) > MISSING_MAX:
            self._missing.clear()
        self._missing |= dict.fromkeys(unknown - self._registry.known.schemas.keys(), now)

    def json_of(self, value: bytes | None) -> bytes | None:
        """Return a value as JSON; None if it has no schema id or cannot be decoded."""
        if value is None or not framing.has_id(value):
            return None
        try:
            return self._values.json_of(value)
        except UndecodedError:
            return None

    def _schema_of(self, number: int) -> Schema:
        found = self._registry.known.schemas.get(number)
        if found is None:
            raise RegistryError(Code.SCHEMA_NOT_FOUND, "not in the registry")
        return found

    def _find(self, reference: Reference) -> Schema:
        return self._registry.known.find(reference)
