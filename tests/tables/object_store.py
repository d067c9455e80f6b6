"""An S3 server on loopback that can be told to fail: throttled, in the middle of an upload, or without an answer. It is moto's,
or a layer in front of another."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
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
Served = Callable[[dict[str, Any], Answer], Iterable[bytes]]


SOME = 512
"""Bytes of an upload whose length nobody says: less than any file here has."""
SILENT = "silent"
"""No answer, until `mend`; then the request is refused as a busy store does."""


class ObjectStore:
    """`fail_from(n, how)`: the n-th request from now on and all after it, until `mend`. `about`: of those whose path has it."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._lock = threading.Lock()
        self._left: int | None = None
        self._how = self._about = ""
        self._mended = threading.Event()
        self.requests = 0
        self.failed_paths: list[str] = []
        self.url = ""
        self.ignores_conditions = False
        """As a store does that knows nothing of `If-None-Match`."""

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
        if self.ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if how == SILENT:
            self._mended.wait()
            how = "throttled"  # who still listens asks again
        if how:
            whole = int(environ.get("CONTENT_LENGTH") or 0)
            if "HTTP_TRANSFER_ENCODING" in environ:  # nobody says how long it is
                environ["wsgi.input"].read(SOME if how == "half" else -1)
            else:
                environ["wsgi.input"].read(whole // 2 if how == "half" else whole)
            code, body = _ANSWERS[how]
            answer(
                code, [("Content-Type", "application/xml"), ("Content-Length", str(len(body))), ("Connection", "close")]
            )
            return [body]
        return self._served(environ, answer)

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


def forwarded(port: int) -> Served:
    """What a server at that port answers. Requests are signed: what was signed goes on as it came, the name of the host too."""

    def serve(environ: dict[str, Any], answer: Answer) -> Iterable[bytes]:
        named = {name.removeprefix("HTTP_"): value for name, value in environ.items() if name.startswith("HTTP_")}
        is_chunked = named.pop("TRANSFER_ENCODING", None) is not None
        body = environ["wsgi.input"].read(-1 if is_chunked else int(environ.get("CONTENT_LENGTH") or 0))
        named |= {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": environ.get("CONTENT_TYPE") or ""}
        connection = HTTPConnection("127.0.0.1", port)
        try:
            connection.putrequest(
                environ["REQUEST_METHOD"], environ["RAW_URI"], skip_host=True, skip_accept_encoding=True
            )
            for name, value in ((name, value) for name, value in named.items() if value):
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders(body)
            found = connection.getresponse()
            read = found.read()
            kept = [each for each in found.getheaders() if each[0].lower() not in ("connection", "transfer-encoding")]
            answer(f"{found.status} {found.reason}", kept)
            return [read]
        finally:
            connection.close()

    return serve


@contextmanager
def object_store(served: Served | None = None) -> Iterator[ObjectStore]:
    """Who serves it takes `a` and `b` for keys."""
    store = ObjectStore(served or DomainDispatcherApplication(create_backend_app))
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
