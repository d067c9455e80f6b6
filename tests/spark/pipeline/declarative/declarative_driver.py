"""A process that runs a declarative pipeline: what is there; then, at a line on stdin each, what a replay has left to do, a
backfill that is cut short and repeated, and on and on until stdin ends. With the name of a table it is a backfill alone, which is
killed when that table's turn has come or, with `after`, when its rows are written."""

import os
import signal
import sys
import threading
from collections.abc import Callable

import msgspec
from pyspark.sql import DataFrame, SparkSession

from braidlog import BrokerError
from braidlog.spark.pipeline import operations
from braidlog.spark.pipeline.layers import tables
from braidlog.spark.pipeline.ledger import Ledger
from braidlog.spark.pipeline.operations import Wishes
from braidlog.spark.pipeline.project import Project, open_project
from braidlog.spark.pipeline.stage_runner import Stopped, StopRequest

CONF = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.pipelines.execution.maxConcurrentFlows": "1",
    # On a busy machine a Python process may need more than the ten seconds that Spark gives it, again and again.
    "spark.sql.pipelines.maxFlowRetryAttempts": "100",
}
WISHES = Wishes("local[2]", CONF)


class CutShort(Exception):  # noqa: N818 - what it is
    """A table's turn has come."""


def stop_at_end(stop: StopRequest) -> None:
    sys.stdin.read()
    stop.set()


def say(told: object) -> None:
    print(told if isinstance(told, str) else msgspec.json.encode(told).decode(), flush=True)


def run(project: Project) -> None:
    stop = StopRequest()
    with operations.session(project, WISHES) as spark:
        for line in operations.dry_run(spark, project):
            say(line)
        for done in ("done", "replayed"):
            operations.run(spark, project, Wishes(once=True), stop, lambda _: None)
            say(done)
            sys.stdin.readline()
        backfill(spark, project)
        sys.stdin.readline()
        threading.Thread(target=stop_at_end, args=(stop,), daemon=True).start()
        try:
            operations.run(spark, project, Wishes(), stop, lambda _: None)
        except Stopped:
            try:
                with Ledger(project.storage).alone():
                    say("free")
            except BrokerError:
                say("held")  # flows may write as long as there is a session
            say("stopped")


def backfill(spark: SparkSession, project: Project) -> None:
    say(operations.backfill(spark, project, "earliest", "latest", dry_run=True))
    append = tables.append
    at("windows", cut, after=False)
    try:
        operations.backfill(spark, project, "earliest", "latest", dry_run=False)
    except CutShort:
        say("cut short")
    tables.append = append
    say(operations.backfill(spark, project, "earliest", "latest", dry_run=False))
    say("filled")


def at(turn: str, act: Callable[[], None], *, after: bool) -> None:
    """From here on, act when rows are to be written to a table, or have been."""
    append = tables.append

    def appended(rows: DataFrame, project: Project, table: str, own: dict[str, str] | None = None) -> None:
        if table == turn and not after:
            act()
        append(rows, project, table, own)
        if table == turn:
            act()

    tables.append = appended


def cut() -> None:
    raise CutShort


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill_and_die(project: Project, table: str, after: str = "") -> None:
    at(table, die, after=bool(after))
    with operations.session(project, WISHES) as spark:
        operations.backfill(spark, project, "earliest", "latest", dry_run=False)


if __name__ == "__main__":
    found = open_project(sys.argv[1])
    if len(sys.argv) > 2:
        fill_and_die(found, *sys.argv[2:])
    else:
        run(found)
