"""Validates changes of a registry, and returns the entries that record them. Nothing is changed here.

Implements registering, deleting, levels and modes, with Confluent's codes and messages. Does not handle: HTTP, the
log. Each function takes a state and returns what to append and what to answer; if nothing is to be appended, the
state is as requested.
"""

from typing import Any, Final, NamedTuple

import msgspec

from braidlog.registry.compatibility import Level
from braidlog.registry.errors import Code, RegistryError
from braidlog.registry.registry_state import (
    Entry,
    State,
    Version,
    gone_entry,
    max_id_entry,
    schema_entry,
    subject_entry,
)
from braidlog.registry.schemas import Reference, Schema

MODES: Final = ("READWRITE", "READONLY", "IMPORT")
VERSION_MAX: Final = 2**31 - 1
LATEST: Final = "latest"
SUBJECT_CHARACTERS_MAX: Final = 255


class Change(NamedTuple):
    entries: list[Entry]
    answer: Any


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A schema as sent by a client."""

    schema: str = ""
    schemaType: str | None = None  # noqa: N815 - as it is written
    references: list[Reference] | None = None
    id: int = -1
    version: int = -1
    metadata: Any = None
    ruleSet: Any = None  # noqa: N815

    def plain(self) -> Schema:
        if self.metadata or self.ruleSet:
            raise RegistryError(Code.INVALID_SCHEMA, "metadata and ruleSet are not supported here: leave them out")
        return Schema(self.schema, (self.schemaType or "AVRO").upper(), tuple(self.references or ()))


def check_subject(subject: str) -> str:
    bad = not subject or len(subject) > SUBJECT_CHARACTERS_MAX or any(ord(each) < 32 for each in subject)
    if bad or subject in ("__GLOBAL", "__EMPTY"):
        raise RegistryError(Code.INVALID_SUBJECT, f"The specified subject {subject[:60]!r} is not a valid.")
    if subject.startswith(":.") and not subject.startswith(":.:"):
        raise RegistryError(Code.INVALID_SUBJECT, "contexts are not supported: leave out the part between colons")
    return subject.removeprefix(":.:")


# -- queries ---------------------------------------------------------------------------------------------------------


def no_subject(subject: str) -> RegistryError:
    return RegistryError(Code.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def versions_of(state: State, subject: str, *, deleted: bool) -> list[Version]:
    versions = state.versions(subject, deleted=deleted)
    if not versions:
        raise no_subject(subject)
    return versions


def version_of(state: State, subject: str, number_text: str, *, deleted: bool = False) -> Version:
    number = _number(number_text)
    versions = versions_of(state, subject, deleted=deleted)
    for each in versions if number is not None else versions[-1:]:
        if number in (None, each.version):
            return each
    raise RegistryError(Code.VERSION_NOT_FOUND, f"Version {number_text} not found.")


def _number(text: str) -> int | None:
    """Parse a version number; None: the latest."""
    if text in (LATEST, "-1"):
        return None
    if text.isascii() and text.isdecimal() and len(text) < 11 and 1 <= int(text) <= VERSION_MAX:
        return int(text)
    raise RegistryError(
        Code.INVALID_VERSION,
        f"The specified version '{text[:40]}' is not a valid version id. Allowed values are between [1, 2^31-1] and "
        'the string "latest"',
    )


def lookup(state: State, subject: str, sent: Wanted, *, deleted: bool) -> Version:
    same = _same(state, versions_of(state, subject, deleted=deleted), _read(state, sent))
    if same is None:
        raise RegistryError(Code.SCHEMA_NOT_FOUND, "Schema not found")
    return same


def _read(state: State, sent: Wanted) -> Schema:
    """Return the schema with its stored text."""
    plain = sent.plain()
    return msgspec.structs.replace(plain, text=state.text(plain))


def _same(state: State, versions: list[Version], schema: Schema) -> Version | None:
    """Return the newest version with this schema."""
    identity = state.identity(schema)
    for version in reversed(versions):
        if (version.schema.type, version.schema.references) == (schema.type, schema.references) and (
            version.schema.text == schema.text or state.identity(version.schema) == identity
        ):
            return version
    return None


def compatible(state: State, subject: str, sent: Wanted, version: str | None) -> list[str]:
    """Return the incompatibilities with one version, or (None) with those that the level requires."""
    schema, level = _read(state, sent), state.level(subject)
    earlier = state.versions(subject, deleted=False) if version is None else [version_of(state, subject, version)]
    return state.misfits(schema, earlier, level)


# -- changing --------------------------------------------------------------------------------------------------------


def _check_writable(state: State, subject: str | None) -> None:
    if state.mode(subject) == "READONLY":
        what = "The registry" if subject is None else f"Subject {subject}"
        raise RegistryError(Code.NOT_PERMITTED, f"{what} is in read-only mode")


def register(state: State, subject: str, sent: Wanted) -> Change:
    _check_writable(state, subject)
    imports = state.mode(subject) == "IMPORT"
    if (sent.id >= 0) != imports:
        words = "is in import mode: name an id" if imports else "is not in import mode"
        raise RegistryError(Code.NOT_PERMITTED, f"Subject {subject} {words}")
    schema = _read(state, sent)
    live, every = state.versions(subject, deleted=False), state.versions(subject, deleted=True)
    there = _same(state, live, schema)
    if there is not None and sent.id in (-1, there.id):
        return Change([], {"id": there.id})
    if not imports:
        level = state.level(subject)
        wrong = state.misfits(schema, live, level)
        if wrong:
            details = "; ".join(wrong[:20])
            raise RegistryError(
                Code.INCOMPATIBLE,
                f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
                f"details: [{details}] (compatibility: {level})",
            )
    number = _id(state, every, schema, sent)
    version = sent.version if imports and sent.version > 0 else max((each.version for each in every), default=0) + 1
    return Change([schema_entry(Version(subject, version, number, schema))], {"id": number})


def _id(state: State, versions: list[Version], schema: Schema, sent: Wanted) -> int:
    """Return the schema's id: a schema has the same id wherever it is registered."""
    if sent.id >= 0:
        if sent.id in state.schemas and state.schemas[sent.id] != schema:
            raise RegistryError(Code.NOT_PERMITTED, f"Overwrite new schema with id {sent.id} is not permitted.")
        return sent.id
    there = _same(state, versions, schema)
    known = state.id_of(schema) if there is None else there.id
    return state.max_id + 1 if known is None else known


def delete_subject(state: State, subject: str, *, permanent: bool) -> Change:
    _check_writable(state, subject)
    every, live = versions_of(state, subject, deleted=True), state.versions(subject, deleted=False)
    numbers = [each.version for each in (every if permanent else live)]
    if permanent and live:
        raise RegistryError(
            Code.SUBJECT_NOT_SOFT_DELETED, f"Subject '{subject}' was not deleted first before being permanently deleted"
        )
    if not permanent and not live:
        raise RegistryError(
            Code.SUBJECT_SOFT_DELETED,
            f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
        )
    for each in every if permanent else live:
        _check_unreferenced(state, each, permanent=permanent)
    if not permanent:
        value = {"subject": subject, "version": live[-1].version}
        return Change([subject_entry("DELETE_SUBJECT", subject, value)], numbers)
    entries = [max_id_entry(state.max_id), *map(gone_entry, every)]
    entries += [subject_entry(kind, subject, None) for kind in ("DELETE_SUBJECT", "CONFIG", "MODE")]
    return Change(entries, numbers)


def delete_version(state: State, subject: str, number_text: str, *, permanent: bool) -> Change:
    _check_writable(state, subject)
    version = version_of(state, subject, number_text, deleted=True)
    if number_text in (LATEST, "-1") and not permanent:
        version = version_of(state, subject, number_text)
    what = f"Subject '{subject}' Version {version.version}"
    if permanent and not version.deleted:
        raise RegistryError(
            Code.VERSION_NOT_SOFT_DELETED, f"{what} was not deleted first before being permanently deleted"
        )
    if not permanent and version.deleted:
        raise RegistryError(
            Code.VERSION_SOFT_DELETED, f"{what} was soft deleted. Set permanent=true to delete permanently"
        )
    _check_unreferenced(state, version, permanent=permanent)
    if permanent:
        return Change([max_id_entry(state.max_id), gone_entry(version)], version.version)
    return Change([schema_entry(msgspec.structs.replace(version, deleted=True))], version.version)


def _check_unreferenced(state: State, each: Version, *, permanent: bool) -> None:
    others = [one for one in state.referring(each, deleted=permanent) if one.subject != each.subject]
    if others:
        who = f"{{magic=1,keytype=SCHEMA,subject={each.subject},version={each.version}}}"
        raise RegistryError(Code.REFERENCE_EXISTS, f"One or more references exist to the schema {who}.")


def set_level(state: State, subject: str | None, text: object) -> Change:
    _check_writable(state, subject)
    level = text.upper() if isinstance(text, str) else ""
    if level not in Level.__members__:
        raise RegistryError(
            Code.INVALID_COMPATIBILITY,
            "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
            "forward_transitive, and full_transitive",
        )
    value = {"subject": subject, "compatibilityLevel": level}
    return Change([subject_entry("CONFIG", subject, value)], {"compatibility": level})


def delete_level(state: State, subject: str | None) -> Change:
    _check_writable(state, subject)
    if subject is not None and subject not in state.levels:
        raise no_level(subject)
    answer = {"compatibilityLevel": state.level(subject)}
    return Change([subject_entry("CONFIG", subject, None)] if subject in state.levels else [], answer)


def no_level(subject: str) -> RegistryError:
    return RegistryError(
        Code.COMPATIBILITY_NOT_SET, f"Subject '{subject}' does not have subject-level compatibility configured"
    )


def set_mode(state: State, subject: str | None, text: object, *, force: bool) -> Change:
    mode = text.upper() if isinstance(text, str) else ""
    if mode not in MODES:
        raise RegistryError(Code.INVALID_MODE, f"Invalid mode. Valid values are {', '.join(MODES)}")
    there = any(True for _ in state.every(deleted=True)) if subject is None else subject in state.subjects
    if mode == "IMPORT" and there and not force and state.mode(subject) != "IMPORT":
        raise RegistryError(Code.NOT_PERMITTED, "Cannot import since found existing subjects")
    return Change([subject_entry("MODE", subject, {"subject": subject, "mode": mode})], {"mode": mode})


def delete_mode(state: State, subject: str | None) -> Change:
    if subject is not None and subject not in state.modes:
        raise no_mode(subject)
    answer = {"mode": state.mode(subject)}
    return Change([subject_entry("MODE", subject, None)] if subject in state.modes else [], answer)


def no_mode(subject: str) -> RegistryError:
    return RegistryError(Code.MODE_NOT_SET, f"Subject '{subject}' does not have subject-level mode configured")
