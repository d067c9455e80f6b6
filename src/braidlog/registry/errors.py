"""What a registry says no with: Confluent's published codes, whose first three digits are those of HTTP; and what cannot be done
with a schema that is there."""

from enum import IntEnum
from typing import Final

WHY_CHARS_MAX: Final = 300
"""Of what is said of a value that is not as its schema says."""
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
    """A refusal, as its client reads it."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


PAIRS_MAX: Final = 100_000
"""Of types, of one comparison: about a second of a processor."""
SIMPLIFY: Final = (
    "use fewer branches in unions (Avro), anyOf, oneOf and allOf (JSON), use shorter names, move types to schemas of their "
    "own, compare with fewer versions (a level without _TRANSITIVE), or set the subject's compatibility to NONE"
)


def too_complex(limit: str = f"{PAIRS_MAX} pairs of types") -> RegistryError:
    return invalid(f"the comparison with earlier versions takes more than {limit}; {SIMPLIFY}")


def invalid(message: str) -> RegistryError:
    """A message may quote the schema: it is shortened."""
    return RegistryError(Code.INVALID_SCHEMA, f"Invalid schema: {message[:INVALID_CHARS_MAX]}")


class ColumnTypeError(ValueError):
    """A schema, or a part of one, that is no column, or whose values are not read."""
