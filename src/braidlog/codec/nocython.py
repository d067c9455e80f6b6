"""What the kernel needs of the name `cython` where Cython is not installed.

Knows: that nothing is compiled here. Refuses to know: types; they are written for the compiler and never
looked at. Cython is needed to build the kernel, not to run it: its own module of this name is used when it is
there.
"""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

compiled = False
longlong = p_uchar = p_int = object


def cfunc(function: F) -> F:
    return function


def inline(function: F) -> F:
    return function


def exceptval(*, check: bool) -> Callable[[F], F]:
    assert not check
    return cfunc


def struct(**_fields: object) -> type[object]:
    return object
