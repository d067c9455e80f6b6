"""The key-value client for programs without an event loop: `with braidlog.kv.connect("mayfly://127.0.0.1:7275") as store: ...`

Knows: threads. Refuses to know: anything the asyncio client does.
Invariants: any thread may call anything at any time; the thread behind it ends with the client.
"""

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from braidlog.client.blocking import LoopThread
from braidlog.client.kv import client as kv
from braidlog.client.kv import commands as c
from braidlog.client.kv.commands import Command, Text
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.messages import Condition, Consistency

T = TypeVar("T")


class KeyValue:
    """A key-value store; every call waits for its answer."""

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | None = None,
        consistency: Consistency | None = None,
        retries: kv.Retries = "unknown-outcome",
        **policy: float,
    ) -> None:
        self._closed = False
        self._thread = LoopThread(f"braidlog {url.partition('://')[0]}")
        try:
            self._store = self._thread.make(
                lambda: kv.KeyValue(url, tls=tls, consistency=consistency, retries=retries, **policy)
            )
            self._thread.run(self._store.open())
        except BaseException:
            self._thread.stop()
            raise

    def __repr__(self) -> str:
        return repr(self._store)

    def do(self, command: Command[T]) -> T:
        return self._thread.run(self._store.do(command))

    def run(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Many at once, sent in one piece and in order; a result, or the error that stands for it, for each."""
        return self._thread.run(self._store.run(commands))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._thread.run(self._store.close())
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- commands, as `kv_commands.py` tells them ------------------------------------------------------------

    def set(self, key: Text, value: Text, *, ttl_seconds: int = 0, only_if: Condition = Condition.ALWAYS) -> bool:
        return self.do(c.set_(key, value, ttl_seconds=ttl_seconds, only_if=only_if))

    def get(self, key: Text) -> bytes | None:
        return self.do(c.get(key))

    def delete(self, key: Text) -> bool:
        return self.do(c.delete(key))

    def exists(self, key: Text) -> bool:
        return self.do(c.exists(key))

    def expire(self, key: Text, ttl_seconds: int) -> bool:
        return self.do(c.expire(key, ttl_seconds))

    def ttl(self, key: Text) -> int | None:
        return self.do(c.ttl(key))

    def lpush(self, key: Text, *values: Text) -> int:
        return self.do(c.lpush(key, *values))

    def rpush(self, key: Text, *values: Text) -> int:
        return self.do(c.rpush(key, *values))

    def lpop(self, key: Text) -> bytes | None:
        return self.do(c.lpop(key))

    def rpop(self, key: Text) -> bytes | None:
        return self.do(c.rpop(key))

    def lrange(self, key: Text, start: int = 0, stop: int = -1) -> list[bytes]:
        return self.do(c.lrange(key, start, stop))

    def llen(self, key: Text) -> int:
        return self.do(c.llen(key))

    def incr(self, key: Text, by: int = 1) -> int:
        return self.do(c.incr(key, by))

    def hset(self, key: Text, fields: Mapping[Text, Text]) -> int:
        return self.do(c.hset(key, fields))

    def hget(self, key: Text, field: Text) -> bytes | None:
        return self.do(c.hget(key, field))

    def hdel(self, key: Text, *fields: Text) -> int:
        return self.do(c.hdel(key, *fields))

    def hgetall(self, key: Text) -> dict[bytes, bytes]:
        return self.do(c.hgetall(key))

    def ping(self) -> bool:
        return self.do(c.ping())

    def stats(self) -> m.Statistics:
        return self.do(c.stats())

    def memory(self) -> m.MemoryUse:
        return self.do(c.memory())

    def snapshot(self) -> m.SnapshotTaken:
        return self.do(c.snapshot())


def connect(
    url: str,
    *,
    tls: ssl.SSLContext | None = None,
    consistency: Consistency | None = None,
    retries: kv.Retries = "unknown-outcome",
    **policy: float,
) -> KeyValue:
    """Connect to `mayfly://[:token@]host[:port]` or `mayfly+tls://`; `policy` takes the fields of `Policy`, in seconds.

    with braidlog.kv.connect("mayfly://127.0.0.1:7275") as store:
        store.set("greeting", "hello")
    """
    return KeyValue(url, tls=tls, consistency=consistency, retries=retries, **policy)
