"""When a key last changed, in bytes: the kernel writes them without an object for each part.

     0  changed   28  the stamp of the last change of any kind (hybrid_clock.py)
   [28  replaced  28  the stamp of the last SET or DEL, if that is another; zeros: there was none]

Stamps compare as their bytes do. Equal histories have equal bytes: what is equal is written once.
"""

from typing import Final

from braidlog.kv.engine.hybrid_clock import Stamp, unpack_stamp

STAMP_BYTES: Final = 28
NEVER: Final = bytes(STAMP_BYTES)


def changed_at(stamps: bytes) -> bytes:
    return stamps[:STAMP_BYTES]


def replaced_at(stamps: bytes) -> bytes:
    """Return the stamp of the last SET or DEL, or `NEVER`, which is before every stamp."""
    return stamps[-STAMP_BYTES:]


def packed(changed: bytes, replaced: bytes) -> bytes:
    return changed if changed == replaced else changed + replaced


def with_change(stamps: bytes | None, stamp: Stamp, *, replaces: bool) -> bytes:
    """Return the stamps of a key after one more change."""
    new = stamp.pack()
    if replaces:
        return new
    return new + NEVER if stamps is None else packed(max(changed_at(stamps), new), replaced_at(stamps))


def last_change(stamps: bytes) -> Stamp:
    return unpack_stamp(changed_at(stamps))
