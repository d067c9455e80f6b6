"""Server-sent events of pages, and downloads.

At most `FEEDS_MAX` feeds run at a time. An error is sent as an event and ends its feed. A client that reads nothing for
`SEND_SECONDS_MAX` is disconnected.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from braidlog.client.errors import ClientError
from braidlog.console.listener_clients import Clients, ClientsOf, TooManyReaders, status_of
from braidlog.console.monitoring.history import PlotHistory
from braidlog.console.monitoring.spark_pipelines import SparkPipelines
from braidlog.console.node_client import Node, NodeError
from braidlog.console.pages import Pages, rates
from braidlog.console.records import record_tail
from braidlog.console.records.record_filter import FilterError, parse_filter
from braidlog.console.records.record_tail import End, Progress, Skipped, Start, Wanted
from braidlog.console.records.record_values import RecordValues
from braidlog.console.records.wire_messages import wire_messages
from braidlog.model.clock import SystemClock
from braidlog.model.record_json import json_line

log = logging.getLogger("braidlog.console")

FEEDS_MAX: Final = 64
SEND_SECONDS_MAX: Final = 30.0
SECOND: Final = 1.0
DOWNLOAD_RECORDS: Final = 1_000
_STARTS: Final[dict[str, Start]] = {each: each for each in ("last", "earliest", "latest", "offset", "time")}
_ENDS: Final[dict[str, End]] = {each: each for each in ("now", "offset", "time")}

Event = tuple[str, Any]


class Stream(StreamingResponse):
    """Server-sent events; disconnects a client that stops reading."""

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        super().__init__(content, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self.media_type = "text/event-stream"
        self.headers["content-type"] = "text/event-stream; charset=utf-8"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def in_time(message: Any) -> None:  # noqa: ANN401 - ASGI's
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await send(message)

        await super().__call__(scope, receive, in_time)


class Download(StreamingResponse):
    """A file of records. A failure after the first line closes the connection, so that the browser reports an incomplete file."""

    def __init__(self, topic: str, first: bytes, lines: AsyncIterator[bytes]) -> None:
        async def all_lines() -> AsyncIterator[bytes]:
            yield first
            async for line in lines:
                yield line

        name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in topic)
        headers = {"content-disposition": f'attachment; filename="{name}.jsonl"'}
        super().__init__(all_lines(), headers=headers, media_type="application/jsonl")
        self._topic = topic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except (ClientError, NodeError, asyncio.CancelledError) as error:  # cancelled: this process ends
            log.warning("download cut: topic=%s, %s", self._topic, error)


def event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


async def _fault(text: str) -> AsyncIterator[Event | None]:
    """Return a feed with one error event, since a page cannot read the response of a refused feed."""
    yield "fault", {"text": text}


class Feeds:
    """The feeds of this process."""

    def __init__(
        self,
        node: Node,
        clients: ClientsOf,
        values: RecordValues,
        pages: Pages,
        history: PlotHistory,
        pipelines: SparkPipelines,
    ) -> None:
        self._values = values
        self._pipelines = pipelines
        self._clock = SystemClock()
        self._history = history
        self._node = node
        self._clients = clients
        self._pages = pages
        self._listening = 0

    def _stream(self, source: AsyncIterator[Event | None]) -> Response:
        if self._listening >= FEEDS_MAX:
            return PlainTextResponse(f"limit of {FEEDS_MAX} feeds reached; close another page\n", 503)

        async def lines() -> AsyncIterator[bytes]:
            self._listening += 1
            try:
                async for found in self._while_connected(source):
                    yield b": still here\n\n" if found is None else event(*found)
            except (ClientError, NodeError, TooManyReaders) as error:
                yield event("fault", {"text": str(error)})
            finally:
                self._listening -= 1
            if not self._node.gone.is_set():  # else the page reconnects to the restarted node
                yield event("end", {})

        return Stream(lines())

    async def _while_connected(self, source: AsyncIterator[Event | None]) -> AsyncIterator[Event | None]:
        """Yield from `source` until the node stops."""
        gone = asyncio.ensure_future(self._node.gone.wait())
        try:
            while True:
                step = asyncio.ensure_future(anext(source))
                try:
                    await asyncio.wait({step, gone}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not step.done():
                        step.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await step
                if step.cancelled():
                    return
                try:
                    yield step.result()
                except StopAsyncIteration:
                    return
        finally:
            gone.cancel()

    def _of(self, request: Request) -> Clients:
        return self._clients(request.scope["principal"])

    # -- records ---------------------------------------------------------------------------------------------

    async def _wanted(self, request: Request) -> Wanted:
        """Parse the parameters of a request. Raises `ValueError`."""
        topic, asked = request.path_params["topic"], request.query_params
        count = await self._of(request).admin.partition_count(topic)
        numbers = range(min(count, record_tail.PARTITIONS_MAX))
        if asked.get("partition"):
            number = int(asked["partition"])
            if not 0 <= number < count:
                raise ValueError(f"{topic} has partitions 0 to {count - 1}")
            numbers = range(number, number + 1)
        start = _STARTS.get(asked.get("from") or "last")
        if start is None:
            raise ValueError(f"from is one of {', '.join(_STARTS)}")
        end = _ENDS.get(asked.get("to") or "now")
        if end is None:
            raise ValueError(f"to is one of {', '.join(_ENDS)}")
        at, until = int(asked.get("at") or 0), int(asked.get("until") or 0)
        expression = asked.get("filter", "").strip()
        matches = parse_filter(expression) if expression else None
        return Wanted(topic, numbers, self._values, start, at, asked.get("contains", "")[:200], matches, end, until)

    async def tail(self, request: Request) -> Response:
        """Stream new records; with `follow=0`, or an end offset or time, existing records."""

        async def live(wanted: Wanted) -> AsyncIterator[Event | None]:
            async for found in record_tail.follow(self._of(request), wanted):
                if isinstance(found, Skipped):
                    yield "skipped", found
                elif isinstance(found, Progress):
                    yield "progress", found
                else:
                    yield None if found is None else ("record", record_tail.shown(found, self._values))

        async def past(wanted: Wanted, limit: int) -> AsyncIterator[Event | None]:
            async for found in record_tail.read(self._of(request), wanted, limit):
                yield (
                    ("progress", found)
                    if isinstance(found, Progress)
                    else ("record", record_tail.shown(found, self._values))
                )

        async def answer(wanted: Wanted, limit: int | None) -> Response:
            return self._stream(live(wanted) if limit is None else past(wanted, limit))

        return await self._with_wanted(request, answer)

    async def download(self, request: Request) -> Response:
        async def lines(wanted: Wanted, limit: int) -> AsyncIterator[bytes]:
            async for found in record_tail.read(self._of(request), wanted, limit):
                if not isinstance(found, Progress):
                    yield json_line(found)

        async def answer(wanted: Wanted, limit: int | None) -> Response:
            found = lines(wanted, limit or DOWNLOAD_RECORDS)
            return Download(wanted.topic, await anext(found, b""), found)

        return await self._with_wanted(request, answer)

    async def _with_wanted(
        self, request: Request, answer: Callable[[Wanted, int | None], Awaitable[Response]]
    ) -> Response:
        try:
            wanted = await self._wanted(request)
            limit = (
                None
                if request.query_params.get("follow", "1") == "1" and wanted.end == "now"
                else int(request.query_params.get("limit") or 200)
            )
        except (FilterError, ClientError) as error:
            text, status = f"Invalid filter: {error}", 400
            if isinstance(error, ClientError):
                text, status = str(error), status_of(error)
            if request.url.path.endswith("/tail") and status != 404:
                return self._stream(_fault(text))
            return PlainTextResponse(f"{error}\n", status)
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", 400)
        return await answer(wanted, limit)

    async def value(self, request: Request) -> Response:
        """Return the complete value of a record."""
        place = request.path_params
        record = await self._of(request).one(place["topic"], place["partition"], place["offset"])
        if record is None or record.value is None:
            return PlainTextResponse("no value at this offset\n", 404)
        name = f"{place['partition']}-{place['offset']}.bin"
        return Response(
            record.value,
            media_type="application/octet-stream",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    # -- metrics ---------------------------------------------------------------------------------------------

    async def rates(self, _: Request) -> Response:
        async def feed() -> AsyncIterator[Event | None]:
            yield "history", self._history.rates()
            before = await self._node.snapshot()
            while True:
                await asyncio.sleep(SECOND)
                now = await self._node.snapshot()
                if now.taken_ms > before.taken_ms:
                    yield "rates", {"t": now.taken_ms / 1000, **rates(now, before)}
                    before = now

        return self._stream(feed())

    async def lag(self, request: Request) -> Response:
        group = request.path_params["group"]

        async def feed() -> AsyncIterator[Event | None]:
            yield "history", self._history.lag(group)
            said = 0
            while True:
                snapshot = await self._node.cluster.now()
                if snapshot.taken_ms > said:
                    said = snapshot.taken_ms
                    rows = await self._pages.lag_rows(snapshot, group)
                    oldest = max((row.seconds for row in rows if row.seconds is not None), default=None)
                    yield "lag", {"t": said / 1000, "lag": sum(row.report.lag for row in rows), "seconds": oldest}
                await asyncio.sleep(SECOND)

        return self._stream(feed())

    async def pipeline(self, request: Request) -> Response:
        name = request.path_params["pipeline"]

        async def feed() -> AsyncIterator[Event | None]:
            found = self._pipelines.get(name)
            yield "history", found.points() if found is not None else []
            while True:
                if (found := self._pipelines.get(name)) is not None:
                    yield "figures", found.point(self._clock.now_ms())._asdict()
                await asyncio.sleep(SECOND)

        return self._stream(feed())

    async def wire(self, request: Request) -> Response:
        number = request.path_params["number"]
        found = await self._node.connections()
        row = next((each for each in found.rows if each.number == number), None)
        if row is None:
            return PlainTextResponse(f"connection {number} is closed\n", 404)

        async def feed() -> AsyncIterator[Event | None]:
            async for message in wire_messages(self._node, number, row.dialect):
                yield "wire", message

        return self._stream(feed())
