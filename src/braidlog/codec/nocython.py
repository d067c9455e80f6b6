"""What the kernel needs of the name `cython` where Cython is not installed.

Knows: that nothing is compiled here. Refuses to know: types; they are written for the compiler and never
looked at. Cython is needed to build the kernel, not to run it: its own module of this name is used when it is
there.
"""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

compiled = False


class _Type:
    """Stands for a C type, and for an array of it."""

    def __getitem__(self, _size: object) -> "_Type":
        return self


longlong = p_uchar = p_int = uchar = uint = int = _Type()  # noqa: A001 - the name of C's own


def declare(_type: object, value: T) -> T:
    return value


def cfunc(function: F) -> F:
    return function


def inline(function: F) -> F:
    return function


def exceptval(*, check: bool) -> Callable[[F], F]:
    assert not check
    return cfunc


def struct(**_fields: object) -> type[object]:
    return object
