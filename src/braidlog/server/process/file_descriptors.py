"""Limits on open files and sockets: raises the process's limit and divides it between connections and the log.

Invariant: connections leave a share for the log's files: a node at its connection limit can still roll a segment.
"""

import asyncio
import errno
import logging
import resource
import traceback
from typing import Any

from braidlog.model.errors import BrokerError, Reason

log = logging.getLogger("braidlog.server")

_UNLIMITED = 1 << 20
_SHARE = 3 / 4
"""Maximum share of descriptors for connections."""
_DESCRIPTORS_MIN = 128
_COME_AND_GO = 48
"""Descriptors for everything else: ports, pipes to child processes, files opened briefly, the node's internal logs."""
_FILES_MIN = 8
_FILES_MAX = 2048
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_COMPLAIN_SECONDS = 10.0


def raise_limit() -> int:
    """Raise the soft limit to the hard limit; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard


def files_that_fit(connections: int, limit: int) -> int:
    """Return how many files the log may keep open for reading, and as many for writing.

    Raises INVALID_SETTING if the limit is too low for a node.
    """
    if limit < _DESCRIPTORS_MIN:
        raise BrokerError(
            Reason.INVALID_SETTING,
            f"this process may have {limit} files and sockets open (RLIMIT_NOFILE), and a node needs {_DESCRIPTORS_MIN}: "
            "raise the limit with `ulimit -n` or LimitNOFILE",
        )
    room = (limit - connections - _COME_AND_GO) // 2
    return min(max(room, _FILES_MIN), _FILES_MAX)


def connections_that_fit(wanted: int, limit: int) -> int:
    """Return the wanted number of connections, or as many as the limit allows, with a warning."""
    room = max(int(limit * _SHARE), 1)
    if wanted <= room:
        return wanted
    log.warning(
        "limits.connections_max is %d, but of %d files and sockets that this process may have open connections can take %d: "
        "that is the limit; raise it with `ulimit -n` or LimitNOFILE",
        wanted,
        limit,
        room,
    )
    return room


class Complaints:
    """The loop's exception handler: limits the rate of warnings that no connection can be accepted; hides false errors.

    uvloop's TLS raises RuntimeError when it sends on a connection that has just ended. That is no error: the session
    learns of the end separately.

    Without descriptors, asyncio's loop retries `accept` a thousand times in a row and logs a traceback each time, which
    would keep the node busy. (uvloop keeps a spare descriptor to reject clients with.)
    """

    def __init__(self) -> None:
        self._said_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, transport = context.get("exception"), context.get("transport")
        if transport is not None and _is_uvloops(error):
            log.debug("a connection ended while something was sent on it: %s", error)
        elif not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
            loop.default_exception_handler(context)
        elif loop.time() - self._said_at > _COMPLAIN_SECONDS:
            self._said_at = loop.time()
            log.warning("clients have to wait: %s", error.strerror)


def _is_uvloops(error: object) -> bool:
    """Whether the error was raised in uvloop only, without our code."""
    if not isinstance(error, RuntimeError):
        return False
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return all(file.startswith("uvloop/") for file in files)
