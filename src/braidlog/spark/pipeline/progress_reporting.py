"""Reports the progress of streaming queries to a node's admin port and to listeners in this process.

Does not handle: pipelines, terminals, files. Reporting never stops or delays a query. Reports that do not fit the
queue are dropped. An unreachable admin port is logged once, and retried. Spark's progress is passed on unchanged.

    POST /api/spark/progress   {"query": id, "run": id, "name": …, "pipeline": …, "state": …, "error": null, "progress": {…},
                                "tables": {name: place}}
"""

import json
import logging
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final, Literal, Self

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.utils import is_remote

from braidlog.model.reporting.node_report import LOCAL_ADMIN_URL, QueryProgress

log = logging.getLogger("braidlog.spark")

PATH: Final = "/api/spark/progress"
QUEUE_MAX: Final = 1000
POST_SECONDS_MAX: Final = 5.0
CLOSE_SECONDS_MAX: Final = 10.0
ERROR_CHARS_MAX: Final = 4000

_LIKE_PATH: Final = ("http://", "https://")


Listener = Callable[[QueryProgress], object]
Places = Callable[[], dict[str, str]]
"""Returns the locations of the tables that exist."""


class Reporter(StreamingQueryListener):
    """Listens to every query of a session, until `close`."""

    def __init__(self, spark: SparkSession, pipeline: str | None, listeners: list[Listener], tables: Places) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._tables = tables
        self._listeners = listeners
        self._names: dict[str, str | None] = {}
        self._ended: set[str] = set()
        self._change = threading.Condition()
        self._is_open = True
        spark.streams.addListener(self)

    def close(self) -> None:
        """Stop listening; queued reports are still sent, for a limited time."""
        if not self._is_open:
            return
        self._is_open = False
        # Behind Spark Connect removing a listener holds a lock and waits for a thread that may wait for the lock: so
        # the listener stays, and later events are ignored.
        if not is_remote():
            self._spark.streams.removeListener(self)
        for listener in self._listeners:
            if isinstance(listener, AdminPort):
                listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def wait_for_end(self, run: str, seconds_max: float) -> bool:
        """Wait for the end of a run, because Spark calls listeners late; return whether it has ended."""
        with self._change:
            return self._change.wait_for(lambda: run in self._ended, seconds_max)

    def wait_for_ends(self, count: int, seconds_max: float) -> bool:
        """Wait for the end of `count` runs that began together, then forget them: a declarative pipeline keeps
        starting new ones."""
        with self._change:
            came = self._change.wait_for(lambda: len(self._ended) >= count, seconds_max)
            self._ended.clear()
            return came

    # -- called by Spark -----------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        self._names[str(event.runId)] = event.name
        self._all(QueryProgress(str(event.id), str(event.runId), event.name, self._pipeline, "running"))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        ids = str(progress.id), str(progress.runId)
        self._names[ids[1]] = progress.name  # Spark Connect does not report starts
        figures = json.loads(progress.json)
        self._all(QueryProgress(*ids, progress.name, self._pipeline, "running", progress=figures))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        run = str(event.runId)
        error = event.exception
        state: Literal["stopped", "failed"] = "failed" if error else "stopped"
        said = error[:ERROR_CHARS_MAX] if error else None
        self._all(QueryProgress(str(event.id), run, self._names.pop(run, None), self._pipeline, state, said))
        with self._change:
            self._ended.add(run)
            self._change.notify_all()

    def _all(self, report: QueryProgress) -> None:
        if not self._is_open:
            return
        report = msgspec.structs.replace(report, tables=self._tables())
        for listener in self._listeners:
            listener(report)


class AdminPort:
    """Posts reports, from its own thread."""

    def __init__(self, admin: str, token: str = "") -> None:
        if not admin.startswith(_LIKE_PATH):
            raise ValueError(f"{admin!r} is not an http:// URL of an admin port")
        self._url = admin.rstrip("/") + PATH
        self._token = token
        self._queue: queue.Queue[QueryProgress | None] = queue.Queue(QUEUE_MAX)
        self._was_reached: bool | None = None
        self._thread = threading.Thread(target=self._run, name="spark progress", daemon=True)
        self._thread.start()

    def __call__(self, report: QueryProgress) -> None:
        try:
            self._queue.put_nowait(report)
        except queue.Full:
            log.debug("dropping a report of %s: the admin port is slow", report.name)

    def close(self) -> None:
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS_MAX)
        except queue.Full:
            return
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        while (report := self._queue.get()) is not None:
            self._post(report)

    def _post(self, report: QueryProgress) -> None:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(  # noqa: S310 - http(s) alone, see __init__
            self._url, msgspec.json.encode(report), headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=POST_SECONDS_MAX) as answer:  # noqa: S310 - as above
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                self._failed(f"it answered {error.code}")
        except OSError as error:
            self._failed(str(getattr(error, "reason", error)))
        else:
            self._was_reached = True

    def _failed(self, why: str) -> None:
        """Log a failure when it begins, not each time."""
        if self._was_reached is not False:
            log.warning("cannot report progress to %s: %s", self._url, why)
        self._was_reached = False


def report(
    spark: SparkSession,
    admin: str | None = LOCAL_ADMIN_URL,
    token: str = "",
    *,
    pipeline: str | None = None,
    listeners: tuple[Listener, ...] = (),
    tables: Places = dict,
) -> Reporter:
    """Report the progress of every streaming query of a session to a node's admin port (None: to none) and to
    `listeners`. `tables` returns the locations of a pipeline's tables.

    with report(spark, token="…"):
        query.awaitTermination()
    """
    ports = [AdminPort(admin, token)] if admin else []
    return Reporter(spark, pipeline, [*listeners, *ports], tables)
