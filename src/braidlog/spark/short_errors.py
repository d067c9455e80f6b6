"""Shortens errors in Spark's output to a few lines, with the cause last.

Spark copies a whole Python traceback into its own error. An error of braidlog says what happened and what to do, and
is shown without its traceback; any other error keeps it.
"""

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_OURS = "braidlog"


def short_errors(call: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that Spark calls."""

    @functools.wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            if not _is_ours(error):
                raise
            raise error.with_traceback(None) from None

    return called


def short_errors_of_rows(call: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Decorate a generator from which Spark takes rows."""

    @functools.wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from call(*args, **kwargs)
        except BaseException as error:
            if not _is_ours(error):
                raise
            raise error.with_traceback(None) from None

    return called


def _is_ours(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == _OURS
