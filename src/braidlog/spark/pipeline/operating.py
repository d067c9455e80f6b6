"""What a person does with a pipeline: run, replay, backfill, compact, ask how it stands.

Knows: the order in which the parts are called. Refuses to know: arguments, terminals, signals: it is told when to stop.
Invariant: whatever changes something holds the ledger's lock and settles an interrupted replay first.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from pyspark.sql import SparkSession

import braidlog.spark
from braidlog.client.errors import Refusal, RefusedError
from braidlog.spark.pipeline import analysing, backfilling, replaying, tables
from braidlog.spark.pipeline.analysing import Analysed
from braidlog.spark.pipeline.backfilling import Filled
from braidlog.spark.pipeline.checkpoints import Offsets
from braidlog.spark.pipeline.config import Run, refusal
from braidlog.spark.pipeline.ledger import Generation, Ledger
from braidlog.spark.pipeline.project import Project
from braidlog.spark.pipeline.replaying import Plan
from braidlog.spark.pipeline.reporting import report
from braidlog.spark.pipeline.running import Runner, connect, ends
from braidlog.spark.pipeline.telling import Heard, Teller

SHUFFLE_PARTITIONS: Final = "4"
"""Two hundred, Spark's own number, is for clusters; stateful stages keep the number that they began with."""


class Wishes(msgspec.Struct, frozen=True):
    """How a command wants it, over what the file says."""

    master: str = ""
    conf: dict[str, str] = {}
    admin: str | None = None
    token: str = ""


def session(project: Project, wishes: Wishes) -> SparkSession:
    run: Run = project.pipeline.run
    conf = {"spark.sql.shuffle.partitions": SHUFFLE_PARTITIONS, "spark.ui.showConsoleProgress": "false"}
    return braidlog.spark.session(
        f"braid pipeline {project.name}",
        wishes.master or run.master,
        log_level="ERROR",
        **conf | run.conf | wishes.conf,
    )


@contextmanager
def _runner(
    spark: SparkSession, project: Project, generation: Generation, wishes: Wishes, show: Callable[[Heard], object]
) -> Iterator[Runner]:
    admin = project.pipeline.report.admin if wishes.admin is None else wishes.admin
    teller = Teller(Ledger(project.storage), generation, show)
    with report(spark, admin or None, wishes.token, pipeline=project.name, tell=(teller,)) as reporter:
        runner = Runner(spark, project, generation, reporter)
        runner.prepare()
        yield runner


def run(
    spark: SparkSession,
    project: Project,
    wishes: Wishes,
    stop: threading.Event,
    show: Callable[[Heard], object],
    *,
    once: bool,
    only: frozenset[str] = frozenset(),
) -> None:
    """All that is there now, or on and on until told to stop."""
    with Ledger(project.storage).alone():
        _run(spark, project, wishes, stop, show, once=once, only=only)


def _run(
    spark: SparkSession,
    project: Project,
    wishes: Wishes,
    stop: threading.Event,
    show: Callable[[Heard], object],
    *,
    once: bool,
    only: frozenset[str] = frozenset(),
) -> None:
    generation = replaying.settle(project)
    with _runner(spark, project, generation, wishes, show) as runner:
        names = {stage.name for stage in runner.stages}
        if unknown := sorted(only - names):
            raise refusal(f"there is no stage {unknown[0]!r}; there are {', '.join(sorted(names))}")
        if generation.from_bronze:
            replaying.rebuild_from_bronze(runner, project)
        if once:
            runner.once(stop, only)
        else:
            runner.forever(stop, only)
    if once and not only:
        tables.remove_aside(project)


def analyse(spark: SparkSession, project: Project) -> Analysed:
    with Ledger(project.storage).alone():
        return analysing.analyse(spark, project)


def plan_replay(project: Project, origin: str) -> Plan:
    return replaying.make_plan(project, origin, topic_ends(project))


def replay(
    spark: SparkSession,
    project: Project,
    plan: Plan,
    wishes: Wishes,
    stop: threading.Event,
    show: Callable[[Heard], object],
) -> None:
    """Begin the new generation and bring it to where the log is now."""
    with Ledger(project.storage).alone():
        if Ledger(project.storage).generation().latest != plan.generation - 1:
            raise refusal("another replay has begun since this one was planned")
        replaying.begin(project, plan)
        _run(spark, project, wishes, stop, show, once=True)


def backfill(spark: SparkSession, project: Project, start: str, end: str, *, dry_run: bool) -> Filled:
    with Ledger(project.storage).alone():
        generation = replaying.settle(project)
        found = topic_ends(project)
        backfilling.check(project, found)
        runner = Runner(spark, project, generation)
        return backfilling.backfill(runner, project, generation, start, end, found, dry_run=dry_run)


def topic_ends(project: Project) -> Offsets:
    """The ends of all topics of a pipeline; those of a layer that was never written are not there."""
    layers = [project.silver_topic, project.windows_topic]
    with connect(project) as client:
        found = ends(client, project.source.topics)
        for topic in layers:
            try:
                found |= ends(client, [topic])
            except RefusedError as error:
                if error.reason is not Refusal.TOPIC_NOT_FOUND:
                    raise
    return found
