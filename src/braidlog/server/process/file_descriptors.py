"""How many files and sockets this process may have open, and how many of them connections may take.

Knows: the operating system's limit. Refuses to know: who opens what.
Invariant: connections leave a share for the log's own files: a node that cannot take one more client can still roll a segment.
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
"""Of all descriptors, at most this part is for connections."""
_DESCRIPTORS_MIN = 128
_COME_AND_GO = 48
"""Descriptors for all else: ports, pipes to other processes, files that are read or written once, the node's own logs."""
_FILES_MIN = 8
_FILES_MAX = 2048
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_COMPLAIN_SECONDS = 10.0


def raise_limit() -> int:
    """Take as many descriptors as the process is allowed; return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard


def files_that_fit(connections: int, limit: int) -> int:
    """How many files of each kind the log may keep open: for reading, and for writing. What is left is for what comes and goes.

    A limit that does not leave enough for a node to work with is refused.
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
    """As many connections as were asked for, or as many as there are descriptors for, said aloud."""
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
    """The loop's exception handler: that nothing more can be accepted is said now and then, and what is no error at all is not.

    uvloop's TLS fails when it has something to send on a connection that has just ended (RuntimeError, of a transport; one that
    uvloop closed by itself does not even say that it is closing): everybody who has to know hears of the end itself.

    asyncio's own loop tries a thousand times in a row when descriptors run out, and tells each time, with a traceback: a node
    that cannot take clients would be busy saying so. (uvloop keeps a descriptor in reserve to turn them away with.)
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
    """Whether none of our own code had a part in it."""
    if not isinstance(error, RuntimeError):
        return False
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return all(file.startswith("uvloop/") for file in files)
