"""A copy-on-write mapping: an image of the keys is taken without copying.

Does not handle: keys, values, the lifetime of images.
Invariant: while `is_looked_at`, the mapping below does not change. After that, `merge` moves the changes into it,
a few at a time.

    Overlay ─ changes since the second image
      └ Overlay ─ changes since the first image        what the second image shows
          └ dict                                       what the first image shows
"""

from collections.abc import Iterator, MutableMapping
from typing import Final, TypeVar, cast, overload

V = TypeVar("V")
_T = TypeVar("_T")


class _Removed:
    """Marks a deleted value."""


_REMOVED: Final = _Removed()


class Overlay(MutableMapping[bytes, V]):
    """Reads as the mapping below with the changes applied. No value is None. The order of keys may differ."""

    __slots__ = ("_changes", "_count", "base", "is_looked_at")

    def __init__(self, base: MutableMapping[bytes, V]) -> None:
        self.base = base
        self.is_looked_at = True
        self._changes: dict[bytes, V | _Removed] = {}
        self._count = len(base)

    @overload
    def get(self, key: bytes) -> V | None: ...
    @overload
    def get(self, key: bytes, default: V | _T) -> V | _T: ...
    def get(self, key: bytes, default: object = None) -> object:
        found = self._changes.get(key)
        if found is None:
            return self.base.get(key, default)
        return default if found is _REMOVED else found

    def __getitem__(self, key: bytes) -> V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return self.get(cast("bytes", key)) is not None

    def __setitem__(self, key: bytes, value: V) -> None:
        if key not in self:
            self._count += 1
        self._changes[key] = value

    def __delitem__(self, key: bytes) -> None:
        if key not in self:
            raise KeyError(key)
        self._count -= 1
        if key in self.base:
            self._changes[key] = _REMOVED
        else:
            del self._changes[key]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        changes = self._changes
        for key in self.base:
            if key not in changes:
                yield key
        for key, value in changes.items():
            if value is not _REMOVED:
                yield key

    def merge(self, count_max: int) -> bool:
        """Move up to `count_max` changes into the mapping below, which no image uses; return whether none are left."""
        assert not self.is_looked_at, "an image stands still"
        base, changes = self.base, self._changes
        for _ in range(min(count_max, len(changes))):
            key, value = changes.popitem()
            if isinstance(value, _Removed):
                base.pop(key, None)
            else:
                base[key] = value
        return not changes


def released(top: MutableMapping[bytes, V], looked_at: MutableMapping[bytes, V]) -> None:
    """Mark a mapping below `top` as no longer used by an image."""
    layer = top
    while isinstance(layer, Overlay):
        if layer.base is looked_at:
            layer.is_looked_at = False
            return
        layer = layer.base
    raise AssertionError("an image was given back twice")


def merged(top: MutableMapping[bytes, V], count_max: int) -> tuple[MutableMapping[bytes, V], bool]:
    """Return `top` without the layers that no image needs, and whether more is left to merge: each call does a part."""
    while isinstance(top, Overlay) and not top.is_looked_at:
        if not top.merge(count_max):
            return top, True
        top = top.base
    return top, False
