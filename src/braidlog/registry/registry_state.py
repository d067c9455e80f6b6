"""The registry's state: subjects, versions, ids, levels, modes, as a fold over the log of schemas.

Reads and writes the JSON of Confluent's `_schemas` topic, so that both implementations' tools work. Unknown records
are skipped. An id never changes its schema, even after its schema was permanently deleted and compacted away: the
highest id is stored in a separate record (under a key that other tools skip). Does not handle: authorization,
validating changes (`changes.py`).

    {"keytype":"SCHEMA","subject":"a-value","version":1,"magic":1}   {"subject":…,"version":1,"id":1,"schema":"…","deleted":false}
    {"keytype":"CONFIG","subject":null,"magic":0}                    {"compatibilityLevel":"FULL"}
    {"keytype":"MODE","subject":"a-value","magic":0}                 {"mode":"READONLY"}
        {"keytype":"DELETE_SUBJECT","subject":"a-value","magic":0}       {"subject":…,"version":3}     up to this version
        {"keytype":"CLEAR_SUBJECT","subject":"a-value","magic":0}        {"subject":…}                 permanently deleted
    {"keytype":"NOOP","magic":0}                                     {"maxId":17}
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from braidlog.registry.compatibility import Comparison, Compute, Level, Reading, Whole, compute
from braidlog.registry.errors import Code, RegistryError
from braidlog.registry.schemas import AVRO, Reference, Schema, check_text, referenced

READ_CHARACTERS_MAX: Final = 16 * 1024 * 1024
"""Maximum size of the cached readings' schemas."""
READING_CHARACTERS: Final = 500
"""The overhead of a cached reading."""
Entry = tuple[bytes, bytes | None]


class Version(msgspec.Struct, frozen=True):
    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False


class _Key(msgspec.Struct):
    keytype: str
    subject: str | None = None
    version: int | None = None


class _SchemaValue(msgspec.Struct, omit_defaults=True, rename={"type": "schemaType", "text": "schema"}):
    subject: str
    version: int
    id: int
    text: str
    type: str = AVRO
    references: list[Reference] = []
    deleted: bool = False


class _Value(msgspec.Struct):
    """The value of any other key, with the fields that are used here."""

    compatibilityLevel: str = ""  # noqa: N815 - as it is written
    mode: str = ""
    version: int = 0
    maxId: int = 0  # noqa: N815


_keys: Final = msgspec.json.Decoder(_Key)
_schema_values: Final = msgspec.json.Decoder(_SchemaValue)
_values: Final = msgspec.json.Decoder(_Value)


def _key(keytype: str, subject: str | None, **more: int) -> bytes:
    magic = 1 if keytype == "SCHEMA" else 0
    return json.dumps({"keytype": keytype, "subject": subject, **more, "magic": magic}, separators=(",", ":")).encode()


def schema_entry(each: Version) -> Entry:
    value = msgspec.to_builtins(
        _SchemaValue(each.subject, each.version, each.id, each.schema.text, each.schema.type, [*each.schema.references])
    )
    return _key("SCHEMA", each.subject, version=each.version), msgspec.json.encode({**value, "deleted": each.deleted})


def gone_entry(each: Version) -> Entry:
    return _key("SCHEMA", each.subject, version=each.version), None


def subject_entry(keytype: str, subject: str | None, value: dict[str, Any] | None) -> Entry:
    return _key(keytype, subject), None if value is None else msgspec.json.encode(value)


def max_id_entry(max_id: int) -> Entry:
    return b'{"keytype":"NOOP","magic":0}', msgspec.json.encode({"maxId": max_id})


class State:
    """The state up to some offset."""

    def __init__(self, compute: Compute = compute) -> None:
        self._compute = compute
        self.subjects: dict[str, dict[int, Version]] = {}
        self.schemas: dict[int, Schema] = {}
        self._ids: dict[Schema, int] = {}
        self.levels: dict[str | None, str] = {}
        self.modes: dict[str | None, str] = {}
        self.max_id = 0
        self._readings: dict[tuple[Schema, str], list[str]] = {}
        self._read_characters = 0

    # -- the fold ------------------------------------------------------------------------------------------------

    def apply(self, entries: Iterable[Entry]) -> None:
        for key, value in entries:
            try:
                self._apply(_keys.decode(key), value)
            except msgspec.MsgspecError:
                continue

    def _apply(self, key: _Key, value: bytes | None) -> None:
        if key.keytype == "SCHEMA":
            self._apply_schema(key, value)
            return
        known = _Value() if value is None else _values.decode(value)
        match key.keytype:
            case "CONFIG":
                _set(self.levels, key.subject, known.compatibilityLevel)
            case "MODE":
                _set(self.modes, key.subject, known.mode)
            case "DELETE_SUBJECT" if value is not None:
                for each in self.versions(key.subject or "", deleted=False):
                    if each.version <= known.version:
                        self._put(msgspec.structs.replace(each, deleted=True))
            case "CLEAR_SUBJECT" if value is not None:
                for each in self.versions(key.subject or "", deleted=True):
                    self._forget(each)
            case "NOOP":
                self.max_id = max(self.max_id, known.maxId)

    def _apply_schema(self, key: _Key, value: bytes | None) -> None:
        before = self.subjects.get(key.subject or "", {}).get(key.version or 0)
        if value is None:
            if before is not None:
                self._forget(before)
            return
        record = _schema_values.decode(value)
        schema = Schema(record.text, record.type, tuple(record.references))
        if before is not None and before.id != record.id:
            self._forget(before)
        self._put(Version(record.subject, record.version, record.id, schema, record.deleted))

    def _put(self, each: Version) -> None:
        self.subjects.setdefault(each.subject, {})[each.version] = each
        self.schemas.setdefault(each.id, each.schema)
        self._ids.setdefault(each.schema, each.id)
        self.max_id = max(self.max_id, each.id)

    def _forget(self, gone: Version) -> None:
        versions = self.subjects[gone.subject]
        del versions[gone.version]
        if not versions:
            del self.subjects[gone.subject]
        if not any(True for _ in self.with_id(gone.id, deleted=True)):
            self.schemas.pop(gone.id, None)
            self._ids.pop(gone.schema, None)

    # -- queries -------------------------------------------------------------------------------------------------

    def versions(self, subject: str, *, deleted: bool) -> list[Version]:
        """Return the versions in order; with `deleted`, also those that are soft-deleted."""
        by_number = self.subjects.get(subject, {})
        return [by_number[number] for number in sorted(by_number) if deleted or not by_number[number].deleted]

    def every(self, *, deleted: bool) -> Iterator[Version]:
        for subject in sorted(self.subjects):
            yield from self.versions(subject, deleted=deleted)

    def with_id(self, number: int, *, deleted: bool) -> Iterator[Version]:
        return (each for each in self.every(deleted=deleted) if each.id == number)

    def subject_state(self, subject: str) -> list[Entry]:
        """Return the entries for a reader of the subject's values: its versions, including deleted ones, and all
        references."""
        needed: dict[tuple[str, int], Version] = {}
        waiting = self.versions(subject, deleted=True)
        while waiting:
            each = waiting.pop()
            if (each.subject, each.version) not in needed:
                needed[each.subject, each.version] = each
                for reference in each.schema.references:
                    versions = self.versions(reference.subject, deleted=True)
                    newest = reference.version == -1
                    waiting += versions[-1:] if newest else [v for v in versions if v.version == reference.version]
        return [schema_entry(needed[place]) for place in sorted(needed)]

    def id_of(self, schema: Schema) -> int | None:
        return self._ids.get(schema)

    def find(self, reference: Reference) -> Schema:
        """Return the schema of a reference, even a deleted version, which its referrers still need."""
        versions = self.versions(reference.subject, deleted=True)
        if reference.version == -1 and versions:
            return versions[-1].schema
        for version in versions:
            if version.version == reference.version:
                return version.schema
        raise RegistryError(Code.VERSION_NOT_FOUND, f"Version {reference.version} not found.")

    def referring(self, to: Version, *, deleted: bool = False) -> list[Version]:
        return [
            each
            for each in self.every(deleted=deleted)
            for reference in each.schema.references
            if (reference.subject, reference.version) == (to.subject, to.version)
        ]

    def text(self, schema: Schema, format_: str = "") -> str:
        """Return a schema's text in a format; "" is the stored text. Raises INVALID_SCHEMA."""
        return self._reading(schema, format_)[0]

    def identity(self, schema: Schema) -> str:
        """Return the identity, which equivalent schemas share. Raises INVALID_SCHEMA."""
        return self._reading(schema)[1]

    def _reading(self, schema: Schema, format_: str = "") -> list[str]:
        """Parse a schema as `Reading` does; cache the result if there is room."""
        reading_known = self._readings.get((schema, format_))
        if reading_known is None:
            check_text(schema)
            reading = Reading(Whole(schema, referenced(schema, self.find)), format_)
            reading_known = compute(reading) if reading.schema.is_small else self._compute(reading)
            if reading_known[0] == schema.text:
                reading_known[0] = schema.text
            # A registered text is in memory anyway, but a subject may have any number of large versions.
            texts = {reading_known[0], schema.text} - {schema.text if schema in self._ids else ""}
            characters = READING_CHARACTERS + sum(map(len, texts))
            self._read_characters += characters
            if self._read_characters > READ_CHARACTERS_MAX:
                self._readings.clear()
                self._read_characters = characters
            self._readings[schema, format_] = reading_known
        return reading_known

    def misfits(self, new: Schema, earlier: Sequence[Version], level: Level) -> list[str]:
        """Return the incompatibilities of a schema with those earlier versions that the level names."""
        named = earlier if level.is_transitive else earlier[-1:]
        if level is Level.NONE or not named:
            return []
        new_one, *others = (
            Whole(each, referenced(each, self.find)) for each in (new, *(each.schema for each in named))
        )
        return self._compute(Comparison(new_one, others, level))

    def level(self, subject: str | None) -> Level:
        level = self.levels.get(subject) or self.levels.get(None, "")
        return Level(level) if level in Level.__members__ else Level.BACKWARD

    def mode(self, subject: str | None) -> str:
        return self.modes.get(subject) or self.modes.get(None) or "READWRITE"


def _set(table: dict[str | None, str], subject: str | None, value: str) -> None:
    if value:
        table[subject] = value
    else:
        table.pop(subject, None)
