"""Binds ports before recovery: a port in use fails the start immediately.

Invariant: clients that connect between `listen` and the start of the listener wait in the kernel's backlog.
"""

import socket
from collections.abc import Iterable, Mapping, Sequence

from braidlog.model.errors import BrokerError, Reason
from braidlog.server.config import ListenerConfig, ServerConfig

BACKLOG = 1024


def listen(host: str, port: int, who: str) -> list[socket.socket]:
    """Return a listening socket for each address of `host`."""
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = socket.socket(family, kind, protocol)
            bound.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.setblocking(False)  # noqa: FBT003 - the name says what
            each.bind(address)
            each.listen(BACKLOG)
    except OSError as error:
        close(bound)
        why = (error.strerror or str(error)).lower()
        raise BrokerError(Reason.INVALID_SETTING, f"{who} cannot listen on {host}:{port}: {why}") from error
    return bound


def close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


def close_all(bound: dict[str, list[socket.socket]]) -> None:
    for sockets in bound.values():
        close(sockets)
    bound.clear()


def advertised_addresses(
    config: ServerConfig, bound: Mapping[str, Sequence[socket.socket]]
) -> dict[str, tuple[str, int]]:
    """Return the addresses that this node registers for its listeners, by dialect."""
    found = {}
    for name, sockets in bound.items():
        settings: ListenerConfig = getattr(config.listeners, name)
        port = sockets[0].getsockname()[1]
        host = settings.advertised_host or config.cluster.peers.advertised_host or settings.host
        found[name] = host, settings.advertised_port or port
    return found
