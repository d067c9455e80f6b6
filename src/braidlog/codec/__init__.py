"""Byte formats: varints, checksums, compression, and the record batch in which every listener's records are stored.

Pure functions on buffers: no files, no sockets, no clock. May import the standard library and C libraries for bytes.
"""

from importlib import import_module
from typing import Final

COMPILED_MODULES: Final = ("clip", "columns", "kernel", "pack", "rows")
"""The modules that setup.py compiles when a C compiler is available."""


def is_compiled() -> bool:
    """Return whether all of them are compiled. A module that is not compiled does its work several times slower."""
    return all(import_module(f"{__name__}.{name}").COMPILED for name in COMPILED_MODULES)
