"""The table of routes. Pages are also listed in the search (`pages.py`)."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from braidlog.client.errors import ClientError
from braidlog.console.access_control import Guard, Keys, is_page
from braidlog.console.actions import Actions
from braidlog.console.assets import Assets
from braidlog.console.forms import Forms
from braidlog.console.listener_clients import ClientsOf, TooManyReaders, status_of
from braidlog.console.monitoring.health import Doctor, Health
from braidlog.console.monitoring.history import PlotHistory
from braidlog.console.monitoring.spark_queries import SparkQueries
from braidlog.console.node_client import ANSWER_SECONDS_MAX, Node, NodeError
from braidlog.console.pages import Pages, topic_rows
from braidlog.console.records.record_values import RecordValues
from braidlog.console.registry.access import Access, RegistryGate
from braidlog.console.registry.routes import RegistryRoutes
from braidlog.console.registry.schema_registry import Registry
from braidlog.console.rendering import Renderer
from braidlog.console.server_sent_events import Feeds
from braidlog.model.clock import SystemClock
from braidlog.model.reporting import prometheus_text
from braidlog.model.reporting.node_report import Check
from braidlog.registry.errors import RegistryError

PACKED_BYTES_MIN: Final = 1024
_DIGITS_MAX: Final = 9

Handler = Callable[[Request], Awaitable[Response]]


def make_app(node: Node, port: int, registry_port: int = 0) -> ASGIApp:
    """Return the application for the admin port and the schema registry's port."""
    registry = Registry(node)
    admin = _make_admin(node, registry, port)
    keys = Keys(node.welcome.token_hash, node.welcome.secret)
    schemas = RegistryGate(RegistryRoutes(registry), Access(node, keys), node.welcome.hosts)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_registry = scope["type"] == "http" and scope["server"][1] == registry_port
        await (schemas if is_registry else admin)(scope, receive, send)

    return app


def _make_admin(node: Node, registry: Registry, port: int) -> ASGIApp:
    clock, welcome = SystemClock(), node.welcome
    guard = Guard(Keys(welcome.token_hash, welcome.secret), node, port, clock)
    assets, doctor, spark_queries = Assets(), Doctor(node), SparkQueries()
    renderer = Renderer(guard, assets, welcome)
    clients = ClientsOf(node, registry)
    pages = Pages(node, clients, registry, doctor, spark_queries, renderer)
    history = PlotHistory(node)
    feeds = Feeds(node, clients, RecordValues(registry), pages, history, spark_queries.pipelines)
    forms = Forms(clients, guard, renderer)
    actions = Actions(node, clients, guard, renderer)
    machines = _Machines(node, doctor, spark_queries, clock)
    page = _Page(renderer, node)
    machine_routes = [
        Route("/healthz", machines.healthz),
        Route("/health", machines.healthz),  # the path in Cursus's broker
        Route("/readyz", machines.readyz),
        Route("/metrics", machines.scrape),
        Route("/api/topics", machines.topics),
        Route("/api/spark/progress", machines.progress, methods=["POST"]),
        Route("/api/spark/queries", machines.queries),
    ]
    page_routes = [
        Route("/", page(pages.overview)),
        Route("/topics", page(pages.topics)),
        Route("/topics/{topic}", page(pages.topic)),
        Route("/topics/{topic}/records", forms.produce, methods=["POST"]),
        Route("/groups", page(pages.groups)),
        Route("/groups/{group}", page(pages.group)),
        Route("/keys", page(pages.keys)),
        Route("/keys/one", page(pages.key)),
        Route("/transactions", page(pages.transactions)),
        Route("/access", page(pages.access)),
        Route("/connections", page(pages.connections)),
        Route("/connections/{number:int}", page(pages.connection)),
        Route("/cluster", page(pages.cluster)),
        Route("/cluster/{topic}/{partition:int}", page(pages.partition_story)),
        Route("/schemas", page(pages.schemas)),
        Route("/schemas/{subject:path}", page(pages.subject)),
        Route("/spark", page(pages.spark)),
        Route("/spark/{pipeline}", page(pages.pipeline)),
        Route("/settings", page(pages.settings)),
        Route("/search", page(pages.search)),
        Route("/login", forms.login_page),
        Route("/login", forms.login, methods=["POST"]),
        Route("/logout", forms.logout, methods=["POST"]),
        Route("/actions/{action}", actions.act, methods=["POST"]),
        # -- assets and feeds
        Route("/static/{name}", assets.serve),
        Route("/api/rates", feeds.rates),
        Route("/api/topics/{topic}/tail", feeds.tail),
        Route("/api/topics/{topic}/download", page(feeds.download)),
        Route("/api/topics/{topic}/{partition:int}/{offset:int}/value", page(feeds.value)),
        Route("/api/groups/{group}/lag", feeds.lag),
        Route("/api/spark/pipelines/{pipeline}/figures", feeds.pipeline),
        Route("/api/connections/{number:int}/wire", feeds.wire),
    ]

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.create_task(history.run()) if welcome.has_pages else None
        yield
        if sampling is not None:
            sampling.cancel()
        await clients.close()

    async def not_found(request: Request, _: Exception) -> Response:
        """Answer browsers with a page, other clients with one line."""
        if welcome.has_pages and is_page(request) and "session" in request.scope:
            return await page(pages.not_found)(request)
        return PlainTextResponse("not found\n", 404)

    routes = machine_routes + (page_routes if welcome.has_pages else [])
    guard.refusal = lambda request, why: renderer.explain(request, "Not allowed", f"{why}.", 403)
    guard.app = Starlette(routes=routes, lifespan=life, exception_handlers={404: not_found})
    return guard


class _Machines:
    """Endpoints for programs."""

    def __init__(self, node: Node, doctor: Doctor, spark_queries: SparkQueries, clock: SystemClock) -> None:
        self._node = node
        self._doctor = doctor
        self._spark_queries = spark_queries
        self._clock = clock

    async def healthz(self, _: Request) -> Response:
        return _json({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        health = await self._doctor.look(_seconds(request))
        shown = health if request.scope["is_known"] else _without_reasons(health)
        return _json(shown, 200 if health.is_ready else 503)

    async def scrape(self, _: Request) -> Response:
        try:
            text = prometheus_text.text_of(await self._node.snapshot())
        except NodeError:
            text = prometheus_text.text_of(None)
        return Response(text, media_type=prometheus_text.CONTENT_TYPE)

    async def topics(self, _: Request) -> Response:
        try:
            rows = topic_rows(await self._node.cluster.now(), self._node.cluster.earlier())
        except NodeError as error:
            return _json({"error": str(error)}, 503)
        return _json({"topics": [row._asdict() for row in rows]})

    async def progress(self, request: Request) -> Response:
        try:
            self._spark_queries.report(await request.body(), self._clock.now_ms())
        except msgspec.DecodeError as error:
            return _json({"error": str(error)}, 400)
        return Response(status_code=204)

    async def queries(self, _: Request) -> Response:
        return _json({"queries": self._spark_queries.queries()})


class _Page:
    """Compresses pages; answers with an error page if the node does not answer."""

    def __init__(self, renderer: Renderer, node: Node) -> None:
        self._renderer = renderer
        self._node = node

    def __call__(self, handler: Handler) -> Handler:
        async def page(request: Request) -> Response:
            return await self._packed(request, handler)

        return page

    async def _packed(self, request: Request, handler: Handler) -> Response:
        try:
            response = await handler(request)
        except asyncio.CancelledError:
            if not self._node.gone.is_set():
                raise
            return PlainTextResponse("the node has stopped\n", 503)
        except (NodeError, ClientError, RegistryError, TooManyReaders) as error:
            if not is_page(request):  # a polled part of a page: the page reports that it is stale
                return PlainTextResponse(f"{error}\n", status_of(error))
            return self._renderer.explain(request, "Page unavailable", f"{error}", status_of(error))
        is_whole = not isinstance(response, StreamingResponse)
        if is_whole and "gzip" in request.headers.get("accept-encoding", "") and len(response.body) >= PACKED_BYTES_MIN:
            response.body = gzip.compress(bytes(response.body), 5)
            response.headers["content-encoding"] = "gzip"
            response.headers["content-length"] = str(len(response.body))
        return response


def _seconds(request: Request) -> float:
    """Return the client's timeout from `?within_ms=`; the default and maximum is the timeout for the node."""
    wanted = request.query_params.get("within_ms", "")
    is_number = wanted.isascii() and wanted.isdecimal() and len(wanted) < _DIGITS_MAX
    return min(int(wanted) / 1000, ANSWER_SECONDS_MAX) if is_number else ANSWER_SECONDS_MAX


def _without_reasons(health: Health) -> Health:
    """Remove the reasons, for clients without the admin token."""
    return Health(health.status, [Check(check.name, check.ok) for check in health.checks])


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
