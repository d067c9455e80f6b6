"""The ids of each subject: the part of the log of schemas that record validation needs, without the schemas.

Reads the records of `_schemas` (see `registry_state.py`). An id belongs to a subject while a version with it is not deleted; a
test compares this with `State`.
"""

from collections.abc import Iterable

import msgspec

from braidlog.registry.registry_state import Entry


class _Key(msgspec.Struct):
    keytype: str
    subject: str | None = None
    version: int | None = None


class _Value(msgspec.Struct):
    """The fields that are used; texts of schemas are skipped."""

    id: int = 0
    version: int = 0
    deleted: bool = False


_keys = msgspec.json.Decoder(_Key)
_values = msgspec.json.Decoder(_Value)


class SubjectIds:
    """The ids up to some offset."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, int]] = {}

    def ids_of(self, subject: str) -> set[int]:
        return set(self._versions.get(subject, {}).values())

    def apply(self, entries: Iterable[Entry]) -> None:
        for key, value in entries:
            try:
                self._apply(_keys.decode(key), None if value is None else _values.decode(value))
            except msgspec.MsgspecError:
                continue

    def _apply(self, key: _Key, value: _Value | None) -> None:
        subject = key.subject or ""
        versions = self._versions.get(subject, {})
        match key.keytype:
            case "SCHEMA" if value is not None and not value.deleted:
                self._versions.setdefault(subject, {})[value.version] = value.id
            case "SCHEMA":
                versions.pop(key.version or 0, None)
            case "DELETE_SUBJECT" if value is not None:
                for version in [each for each in versions if each <= value.version]:
                    del versions[version]
            case "CLEAR_SUBJECT" if value is not None:
                self._versions.pop(subject, None)
