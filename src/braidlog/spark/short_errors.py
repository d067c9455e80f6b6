"""Errors as Spark shows them: a few lines, the cause last.

Knows: that Spark copies a whole Python traceback into its own error. Refuses to know: any error.
Invariant: an error of braidlog's own says in its sentence what happened and what to do, and is shown without the way that led to
it; any other keeps its traceback.
"""

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_OURS = "braidlog"


def short_errors(call: Callable[P, T]) -> Callable[P, T]:
    """For what Spark calls."""

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
    """For what Spark takes rows from."""

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
