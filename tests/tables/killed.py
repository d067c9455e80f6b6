"""A turn in a process that is killed at a point of it."""

import multiprocessing
import os
import signal
from collections.abc import Callable

import msgspec
from tests.tables.turned import turn

from braidlog.tables import catalog, table_writer
from braidlog.tables.files import TableIO
from braidlog.tables.plan import Plan

POINTS = {
    "file": "turning._Writer._close = die",
    "before": "catalog.commit = die",
    "after": "catalog.commit = then_die(catalog.commit)",
    "before retention": "catalog.expire_rows = die",
    "after retention": "catalog.expire_rows = then_die(catalog.expire_rows)",
    "after snapshots": "catalog.forget_snapshots = then_die(catalog.forget_snapshots)",
    "sweep": "TableIO.delete = then_die(TableIO.delete)",
}
_forks = multiprocessing.get_context("forkserver")
"""Its server reads the modules once, and each process is a copy of it: they take longer than a turn."""
_forks.set_forkserver_preload(["tests.tables.killed"])


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(act: Callable[..., object]) -> Callable[..., None]:
    def both(*given: object, **named: object) -> None:
        act(*given, **named)
        die()

    return both


def turn_until(point: str, plan: bytes) -> None:
    exec(
        POINTS[point],
        {"catalog": catalog, "turning": table_writer, "TableIO": TableIO, "die": die, "then_die": then_die},
    )
    turn(msgspec.msgpack.decode(plan, type=Plan))


def turn_and_die(plan: Plan, point: str) -> None:
    process = _forks.Process(target=turn_until, args=(point, msgspec.msgpack.encode(plan)))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    table_writer._swept.clear()  # the next is another process
