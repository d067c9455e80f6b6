"""Byte formats: varints, checksums, compression, and the record batch in which every listener's records are stored.

Pure functions on buffers: no files, no sockets, no clock. May import the standard library and C libraries for bytes.
"""

from importlib import import_module
from typing import Final

COMPILED_MODULES: Final = (
    "batch.kernel",
    "batch.record_slice",
    "batch.rows",
    "columns.arrow_to_records",
    "columns.records_to_arrow",
)
"""The modules that setup.py compiles when a C compiler is available."""


def is_compiled() -> bool:
    """Return whether all of them are compiled. A module that is not compiled does its work several times slower."""
    return all(import_module(f"{__name__}.{name}").COMPILED for name in COMPILED_MODULES)
