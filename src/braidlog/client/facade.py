"""Derives the blocking clients from the asyncio ones (ADR 42).

A coroutine method runs in the client's thread while the caller waits; a plain method or a property is called
directly. Parameters, defaults, docstrings and types are those of the asyncio method: `send =
blocking(aio.Producer.send)`.
"""

import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from braidlog.client.engine.closing import AsyncClosing, AsyncConnection
from braidlog.client.loop_thread import LoopThread

A = TypeVar("A")
T = TypeVar("T")
F = TypeVar("F")
P = ParamSpec("P")


class Facade(Generic[A]):
    """An object of the asyncio client and the thread in which its loop runs. Any thread may call it at any time."""

    __slots__ = ("_inner", "_thread")

    def __init__(self, thread: LoopThread, inner: A) -> None:
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)


@overload
def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[A], P], T]: ...


@overload
def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]], face: Callable[[LoopThread, T], F]
) -> Callable[Concatenate[Facade[A], P], F]: ...


@overload
def blocking(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Facade[A], P], T]: ...


def blocking(method: Callable[..., Any], face: Callable[[LoopThread, Any], Any] | None = None) -> Any:
    """Return the blocking form of a method; `face` makes the blocking form of its result, if it has one."""
    if not iscoroutinefunction(method):
        return wraps(method)(lambda self, *args, **named: method(self._inner, *args, **named))

    @wraps(method)
    def call(self: Facade[Any], *args: Any, **named: Any) -> Any:  # noqa: ANN401 - those of the method
        here = [_exhausted(value) for value in args]
        work = method(self._inner, *here, **{name: _exhausted(value) for name, value in named.items()})
        result = self._thread.run(work)
        return result if face is None else face(self._thread, result)

    if face is not None:
        returned = face if isinstance(face, type) else signature(face).return_annotation
        call.__signature__ = signature(method).replace(return_annotation=returned)  # type: ignore[attr-defined]
    return call


def _exhausted(value: Any) -> Any:  # noqa: ANN401 - any argument
    """Exhaust a generator in the caller's thread: in the client's thread it would block other calls."""
    return list(value) if isinstance(value, Iterator) else value


class View(Generic[T]):
    """A property of the asyncio object, read directly."""

    def __init__(self, getter: Any) -> None:  # noqa: ANN401 - a property, which to a type checker is its getter
        self._read: Callable[[Any], T] = getter.fget
        self.__doc__ = getter.__doc__

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: Facade[Any], owner: type) -> T: ...

    def __get__(self, facade: Facade[Any] | None, owner: type) -> Self | T:
        return self if facade is None else self._read(facade._inner)  # noqa: SLF001 - this is the facade's own property


def view(getter: Callable[[A], T]) -> View[T]:
    return View(getter)


X = TypeVar("X", bound=AsyncClosing)


class ContextFacade(Facade[X]):
    """A facade for use in a `with` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._inner.__aexit__(*error))


C = TypeVar("C", bound=AsyncConnection)


class ConnectionFacade(ContextFacade[C]):
    """A connection, which owns its thread and all objects created from it."""

    def __init__(self, thread: LoopThread, inner: C) -> None:
        super().__init__(thread, inner)
        self._closing = threading.Lock()
        self._closed = False

    def close(self, timeout: float | None = None) -> None:
        """Flush, close everything and end the thread, even if interrupted or after `timeout` seconds."""
        with self._closing:  # a concurrent second close waits for the first: when close returns, the client is closed
            if self._closed:
                return
            try:
                self._thread.run(self._inner.close(), timeout)
            finally:
                self._thread.stop()
                self._closed = True

    def __exit__(self, *error: object) -> None:
        self.close()


G = TypeVar("G", bound=ConnectionFacade[Any])


def connected(make: Callable[P, C], face: Callable[[LoopThread, C], G]) -> Callable[P, G]:
    """Return the function `connect` of a blocking client, with the parameters of the asyncio one."""

    @wraps(make, assigned=("__doc__",))
    def connect(*args: P.args, **named: P.kwargs) -> G:
        thread = LoopThread("braidlog client")
        try:
            inner = thread.make(lambda: make(*args, **named))
            thread.at_end = inner.abandon
            thread.run(inner.open())
            return face(thread, inner)
        except BaseException:
            thread.stop()
            raise

    return connect
