"""The table of addresses.

Knows: which path is answered by whom. Refuses to know: how. Every row that is a page is also in the search (`pages.py`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from braidlog.console import metrics
from braidlog.console.guard import Guard, Keys
from braidlog.console.health import Check, Doctor, Health
from braidlog.console.node import Node, NodeError
from braidlog.console.sparkboard import Board
from braidlog.model.clock import SystemClock


def make_app(node: Node, port: int) -> ASGIApp:
    clock, doctor, board = SystemClock(), Doctor(node), Board()

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> Response:
        health = await doctor.look()
        shown = health if request.scope["is_known"] else _without_reasons(health)
        return _json(shown, 200 if health.is_ready else 503)

    async def scrape(_: Request) -> Response:
        try:
            text = metrics.text_of(await node.snapshot())
        except NodeError:
            text = metrics.text_of(None)
        return Response(text, media_type=metrics.CONTENT_TYPE)

    async def progress(request: Request) -> Response:
        try:
            board.report(await request.body(), clock.now_ms())
        except msgspec.DecodeError as error:
            return _json({"error": str(error)}, 400)
        return Response(status_code=204)

    async def queries(_: Request) -> Response:
        return _json({"queries": board.queries()})

    routes = [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", scrape),
        Route("/api/spark/progress", progress, methods=["POST"]),
        Route("/api/spark/queries", queries),
    ]

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        yield

    app = Starlette(routes=routes, lifespan=life)
    return Guard(app, Keys(node.welcome.token_hash, node.welcome.secret), node.welcome.hosts, port, clock)


def _without_reasons(health: Health) -> Health:
    """What who has no token hears: that something is wrong, not what."""
    return Health(health.status, [Check(check.name, check.ok) for check in health.checks])


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
