"""An S3 server on loopback (moto's) that can be told to fail: throttled, or in the middle of an upload."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "topics"
_ANSWERS = {
    "throttled": ("503 Slow Down", b"<Error><Code>SlowDown</Code><Message>less, please</Message></Error>"),
    "half": ("500 Internal Server Error", b"<Error><Code>InternalError</Code><Message>half of it</Message></Error>"),
}

Answer = Callable[[str, list[tuple[str, str]]], object]


class ObjectStore:
    """`fail_from(n, how)`: the n-th request from now on and all after it, until `mend`."""

    def __init__(self) -> None:
        self._served = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._left: int | None = None
        self._how = ""
        self.requests = 0
        self.failed = 0
        self.url = ""

    def fail_from(self, number: int, how: str) -> None:
        with self._lock:
            self._left, self._how = number, how
            self.failed = 0

    def mend(self) -> None:
        with self._lock:
            self._left = None

    def __call__(self, environ: dict[str, Any], answer: Answer) -> Iterable[bytes]:
        with self._lock:
            self.requests += 1
            how = ""
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    how = self._how
                    self.failed += 1
        if how:
            whole = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"].read(whole if how == "throttled" else whole // 2)
            code, body = _ANSWERS[how]
            answer(
                code, [("Content-Type", "application/xml"), ("Content-Length", str(len(body))), ("Connection", "close")]
            )
            return [body]
        return self._served(environ, answer)  # type: ignore[no-any-return] # moto has no types


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    server = make_server("127.0.0.1", 0, store, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
