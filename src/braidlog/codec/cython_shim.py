"""Replaces the module `cython` where Cython is not installed.

Nothing is compiled here, and types are ignored. Building the kernel needs Cython, running it does not: Cython's own
module is used if it is installed.
"""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

compiled = False


class _Type:
    """Replaces a C type, and an array of it."""

    def __getitem__(self, _size: object) -> "_Type":
        return self


longlong = p_uchar = p_int = uchar = uint = int = _Type()  # noqa: A001 - the names of C


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
