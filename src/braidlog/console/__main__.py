"""`python -m braidlog.console CHANNEL PORT [REGISTRY]`: the console process, started by its node with open sockets.

When the node ends for any reason, the channel reads end of file, and this process ends.
"""

import asyncio
import logging
import os
import socket
import sys
from typing import Final

import uvicorn

from braidlog.console.admin_connections import AdminConnection
from braidlog.console.app import make_app
from braidlog.console.node_client import Node
from braidlog.model.reporting.json_log_line import formatter
from braidlog.model.reporting.node_report import LINE_BYTES_MAX

GOODBYE_SECONDS_MAX: Final = 1
NICENESS: Final = 5
"""Niceness of the process: on few cores the node takes precedence over the console."""


async def serve(channel: socket.socket, *ports: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=channel, limit=LINE_BYTES_MAX)
    node = await Node.meet(reader, writer)
    if node is None:
        writer.close()
        return
    _log(node.welcome.log_format, node.welcome.log_level)
    config = uvicorn.Config(
        make_app(node, *(port.getsockname()[1] for port in ports)),
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        lifespan="on",
        http=AdminConnection,
        timeout_graceful_shutdown=GOODBYE_SECONDS_MAX,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=64 * 1024,
        ssl_certfile=node.welcome.tls_cert or None,
        ssl_keyfile=node.welcome.tls_key or None,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=list(ports)))
    listening = asyncio.create_task(node.run())
    await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
    listening.cancel()
    writer.close()


def _log(kind: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(kind))
    logging.basicConfig(level=max(logging.WARNING, logging.getLevelName(level.upper())), handlers=[handler])


def main() -> None:
    channel, *ports = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    os.nice(NICENESS)
    asyncio.run(serve(channel, *ports))


if __name__ == "__main__":
    main()
