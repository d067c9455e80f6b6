"""Errors of a registry: Confluent's published codes, whose first three digits are an HTTP status; and schemas that
cannot be used for columns."""

from enum import IntEnum
from typing import Final

WHY_CHARS_MAX: Final = 300
"""Maximum length of the error of an invalid value."""
INVALID_CHARS_MAX: Final = 1000


class Code(IntEnum):
    UNAUTHORIZED = 401
    FORBIDDEN = 403
    INCOMPATIBLE = 409
    UNSUPPORTED_CONTENT = 415
    SUBJECT_NOT_FOUND = 40401
    VERSION_NOT_FOUND = 40402
    SCHEMA_NOT_FOUND = 40403
    SUBJECT_SOFT_DELETED = 40404
    SUBJECT_NOT_SOFT_DELETED = 40405
    VERSION_SOFT_DELETED = 40406
    VERSION_NOT_SOFT_DELETED = 40407
    COMPATIBILITY_NOT_SET = 40408
    MODE_NOT_SET = 40409
    INVALID_SCHEMA = 42201
    INVALID_VERSION = 42202
    INVALID_COMPATIBILITY = 42203
    INVALID_MODE = 42204
    NOT_PERMITTED = 42205
    REFERENCE_EXISTS = 42206
    INVALID_SUBJECT = 42208
    STORE_FAILED = 50001
    TIMED_OUT = 50002
    NOT_FORWARDED = 50003

    @property
    def status(self) -> int:
        return self.value if self.value < 1000 else self.value // 100


class RegistryError(Exception):
    """A refused request, as its client sees it."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


PAIRS_MAX: Final = 100_000
"""Maximum pairs of types in one comparison: about a second of CPU time."""
SIMPLIFY: Final = (
    "use fewer branches in unions (Avro), anyOf, oneOf and allOf (JSON), use shorter names, move types to separate "
    "schemas, compare with fewer versions (a level without _TRANSITIVE), or set the subject's compatibility to NONE"
)


def too_complex(limit: str = f"{PAIRS_MAX} pairs of types") -> RegistryError:
    return invalid(f"the comparison with earlier versions takes more than {limit}; {SIMPLIFY}")


def invalid(message: str) -> RegistryError:
    """Return an INVALID_SCHEMA error. A message may quote the schema, so it is shortened."""
    return RegistryError(Code.INVALID_SCHEMA, f"Invalid schema: {message[:INVALID_CHARS_MAX]}")


class ColumnTypeError(ValueError):
    """A schema, or a part of one, that cannot be a column, or whose values cannot be read."""
