"""An S3 server on loopback (moto's) that can be told to fail: throttled, in the middle of an upload, or without an answer."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from pyarrow.fs import S3FileSystem
from werkzeug.serving import make_server

BUCKET = "topics"
_ANSWERS = {
    "throttled": ("503 Slow Down", b"<Error><Code>SlowDown</Code><Message>less, please</Message></Error>"),
    "refused": ("403 Forbidden", b"<Error><Code>AccessDenied</Code><Message>not you</Message></Error>"),
    "half": ("500 Internal Server Error", b"<Error><Code>InternalError</Code><Message>half of it</Message></Error>"),
}

Answer = Callable[[str, list[tuple[str, str]]], object]


SILENT = "silent"
"""No answer, until `mend`; then the request is refused as a busy store does."""


class ObjectStore:
    """`fail_from(n, how)`: the n-th request from now on and all after it, until `mend`. `about`: of those whose path has it."""

    def __init__(self) -> None:
        self._served = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._left: int | None = None
        self._how = self._about = ""
        self._mended = threading.Event()
        self.requests = 0
        self.failed_paths: list[str] = []
        self.url = ""

    @property
    def failed(self) -> int:
        return len(self.failed_paths)

    def fail_from(self, number: int, how: str, about: str = "") -> None:
        with self._lock:
            self._left, self._how, self._about = number, how, about
            self._mended.clear()
            self.failed_paths = []

    def mend(self) -> None:
        with self._lock:
            self._left = None
            self._mended.set()

    def __call__(self, environ: dict[str, Any], answer: Answer) -> Iterable[bytes]:
        with self._lock:
            self.requests += 1
            how = ""
            if self._left is not None and self._about in environ["PATH_INFO"]:
                self._left -= 1
                if self._left < 0:
                    how = self._how
                    self.failed_paths.append(environ["PATH_INFO"])
        if how == SILENT:
            self._mended.wait()
            how = "throttled"  # who still listens asks again
        if how:
            whole = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"].read(whole // 2 if how == "half" else whole)
            code, body = _ANSWERS[how]
            answer(
                code, [("Content-Type", "application/xml"), ("Content-Length", str(len(body))), ("Connection", "close")]
            )
            return [body]
        return self._served(environ, answer)  # type: ignore[no-any-return] # moto has no types

    @property
    def properties(self) -> dict[str, str]:
        """How it is reached, as pyiceberg says it."""
        return {
            "s3.endpoint": self.url,
            "s3.access-key-id": "a",
            "s3.secret-access-key": "b",
            "s3.region": "us-east-1",
        }

    def told(self, catalog: Path) -> dict[str, str]:
        """Properties of a catalog in a file, for tables in this store."""
        return {"type": "sql", "uri": f"sqlite:///{catalog}", **self.properties}


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    server = make_server("127.0.0.1", 0, store, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    try:
        S3FileSystem(
            endpoint_override=store.url, access_key="a", secret_key="b", region="us-east-1", allow_bucket_creation=True
        ).create_dir(BUCKET)
        yield store
    finally:
        store.mend()
        server.shutdown()
        thread.join()
        server.server_close()
