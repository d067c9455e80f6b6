"""Bytes: varints, checksums, compression, and the record batch every door's records are stored in.

Knows: formats. Refuses to know: files, sockets, time, and who is asking. Pure functions on buffers.
May import: the standard library and C libraries made for bytes.
"""

from importlib import import_module
from typing import Final

COMPILED_MODULES: Final = ("clip", "columns", "kernel", "pack", "rows")
"""Those that setup.py compiles where it can."""


def is_compiled() -> bool:
    """Whether all of them are: one that is not makes its part of the work several times slower."""
    return all(import_module(f"{__name__}.{name}").COMPILED for name in COMPILED_MODULES)
