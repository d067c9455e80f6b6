"""The blocking clients have what the asyncio ones have: every public name, with the same parameters and words."""

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any, assert_type

import pytest

from braidlog import aio
from braidlog.client import blocking
from braidlog.client.blocking import Client, Delivery, Producer
from braidlog.client.drivers.contract import Placed
from braidlog.client.facade import Facade, View
from braidlog.client.facade import blocking as derive
from braidlog.client.kv import blocking as kv_blocking
from braidlog.client.kv import client as kv_aio
from braidlog.client.kv.blocking import KeyValue
from braidlog.client.loop_thread import LoopThread

INTERNAL = {
    "Client": {"abandon", "open"},
    "Producer": {
        *("abandon", "settled", "batch_taken", "forget", "enroll"),
        *("transaction_begun", "transaction_over", "drop_unsettled"),
    },
    "Consumer": {
        *("abandon", "arrived", "stopped", "rejoin", "keep_only", "gain", "fetcher_count", "membership"),
        *("check_transactional", "uncommitted", "committed_with", "go_back"),
    },
    "Admin": set[str](),
    "KeyValue": {"abandon", "open"},
}
"""What the engine's parts say to each other, and what the facade itself calls."""
OWN_PARAMETERS = {("Client", "close"): ["timeout"], ("KeyValue", "close"): ["timeout"]}
OWN_TYPES = {("Producer", "transaction")}
"""It takes a blocking consumer, and its words say `with`."""
PAIRS = [
    *((getattr(aio, name), getattr(blocking, name)) for name in ("Client", "Producer", "Consumer", "Admin")),
    (kv_aio.KeyValue, kv_blocking.KeyValue),
]
NAMES = [
    pytest.param(of, face, name, id=f"{of.__module__.rpartition('.')[2]}.{of.__name__}.{name}")
    for of, face in PAIRS
    for name in vars(of)
    if not name.startswith("_") and name not in INTERNAL[of.__name__]
]


def parameters(method: Any) -> list[tuple[str, Any, Any, Any]]:
    found = list(inspect.signature(method).parameters.values())[1:]
    return [(each.name, each.kind, each.default, each.annotation) for each in found]


@pytest.mark.parametrize(("of", "face", "name"), NAMES)
def test_every_public_name_is_derived(of: type, face: type, name: str) -> None:
    assert name in dir(face), f"{face.__module__}.{face.__name__} lacks {name}"
    original, derived = inspect.getattr_static(of, name), inspect.getattr_static(face, name)
    if isinstance(original, property):
        assert isinstance(derived, View)
        assert derived.__doc__ == original.__doc__
        return
    if (of.__name__, name) in OWN_TYPES:
        assert [each[:3] for each in parameters(derived)] == [each[:3] for each in parameters(original)]
        return
    extra = OWN_PARAMETERS.get((of.__name__, name), [])
    assert [each for each in parameters(derived) if each[0] not in extra] == parameters(original)
    assert not inspect.iscoroutinefunction(derived)
    assert derived.__name__ == name
    if not extra:
        assert inspect.getdoc(derived) == inspect.getdoc(original)


@pytest.mark.parametrize(("of", "face"), PAIRS)
def test_nothing_internal_is_shown_and_nothing_is_listed_that_is_gone(of: type, face: type) -> None:
    assert INTERNAL[of.__name__] <= set(vars(of))
    assert not INTERNAL[of.__name__] & set(dir(face))


def test_results_have_their_blocking_form() -> None:
    assert inspect.signature(Producer.send).return_annotation is Delivery
    assert inspect.signature(Producer.send_many).return_annotation == list[Delivery]
    assert str(inspect.signature(KeyValue.get)) == "(self, key: str | bytes) -> bytes | None"


@pytest.mark.parametrize(
    ("derived", "original"), [(blocking.connect, aio.connect), (kv_blocking.connect, kv_aio.connect)]
)
def test_connect_takes_the_same(derived: Any, original: Any) -> None:
    assert inspect.signature(derived).parameters == inspect.signature(original).parameters
    assert list(inspect.signature(derived).parameters)[:2] == ["url", "tls"]
    assert inspect.getdoc(derived) == inspect.getdoc(original)


def _a_type_checker_sees_the_same(client: Client, store: KeyValue) -> None:
    """Never called: mypy reads it."""
    assert_type(client.producer().send("t", b"v", key=b"k"), Delivery)
    assert_type(client.producer().send_many("t", [b"v"], partition=1), list[Delivery])
    assert_type(client.producer().send_and_wait("t", None, headers=[("a", b"b")]), Placed)
    assert_type(client.admin.list_topics(), list[str])
    assert_type(blocking.connect("mlog://h", retry_timeout=1.0), Client)
    assert_type(client.unflushed, int)
    assert_type(client.consumer().position("t", 0), int)
    assert_type(store.get("k"), bytes | None)
    assert_type(store.lrange("k", 0, stop=3), list[bytes])


class _Reader:
    async def names(self, values: Iterator[str]) -> list[str]:
        return list(values)


class _BlockingReader(Facade[_Reader]):
    names = derive(_Reader.names)


def test_generators_run_in_the_thread_that_calls() -> None:

    thread = LoopThread("test")
    try:
        reader = _BlockingReader(thread, _Reader())
        assert reader.names(threading.current_thread().name for _ in range(2)) == ["MainThread"] * 2
    finally:
        thread.stop()


def test_what_was_left_is_ended_whatever_other_threads_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.all_tasks` gives up when other threads make tasks while it looks: twenty clients of one process did."""

    def give_up(_: asyncio.AbstractEventLoop) -> None:
        raise RuntimeError("Set changed size during iteration")

    monkeypatch.setattr(asyncio, "all_tasks", give_up)
    thread = LoopThread("test")
    left = thread.make(lambda: asyncio.get_running_loop().create_task(asyncio.Event().wait()))
    thread.stop()
    assert left.cancelled()
