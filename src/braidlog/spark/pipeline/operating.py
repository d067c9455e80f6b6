"""What a person does with a pipeline: run, replay, backfill, compact, ask how it stands.

Knows: the order in which the parts are called. Refuses to know: arguments, terminals, signals: it is told when to stop.
Invariant: whatever changes something holds the ledger's lock and settles an interrupted replay first.
"""

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
from braidlog.spark.pipeline.progress import ProgressRecorder, StageProgress
from braidlog.spark.pipeline.project import Project
from braidlog.spark.pipeline.replaying import Plan
from braidlog.spark.pipeline.reporting import report
from braidlog.spark.pipeline.running import Runner, StopRequest, connect, ends

SHUFFLE_PARTITIONS: Final = "4"
"""Two hundred, Spark's own number, is for clusters; stateful stages keep the number that they began with."""


class Wishes(msgspec.Struct, frozen=True):
    """How a command wants it, over what the file says."""

    master: str = ""
    conf: dict[str, str] = {}
    admin: str | None = None
    token: str = ""
    once: bool = False
    """All that is there now, instead of on and on."""
    only: frozenset[str] = frozenset()
    """These stages; all, if it is empty."""


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
    spark: SparkSession,
    project: Project,
    generation: Generation,
    wishes: Wishes,
    show: Callable[[StageProgress], object],
) -> Iterator[Runner]:
    admin = project.pipeline.report.admin if wishes.admin is None else wishes.admin
    recorder = ProgressRecorder(Ledger(project.storage), generation, show)
    with report(spark, admin or None, wishes.token, pipeline=project.name, listeners=(recorder,)) as reporter:
        runner = Runner(spark, project, generation, reporter)
        runner.prepare()
        yield runner


def run(
    spark: SparkSession,
    project: Project,
    wishes: Wishes,
    stop: StopRequest,
    show: Callable[[StageProgress], object],
    plan: Plan | None = None,
) -> None:
    """Run the stages until they are done or told to stop. With a plan, its replay begins first."""
    with Ledger(project.storage).alone():
        if plan is not None:
            if Ledger(project.storage).generation().latest != plan.generation - 1:
                raise refusal("another replay has begun since this one was planned; plan it again")
            replaying.begin(project, plan)
        generation = replaying.settle(project)
        with _runner(spark, project, generation, wishes, show) as runner:
            names = {stage.name for stage in runner.stages}
            if unknown := sorted(wishes.only - names):
                raise refusal(f"there is no stage {unknown[0]!r}; there are {', '.join(sorted(names))}")
            if generation.from_bronze:
                replaying.rebuild_from_bronze(runner, project)
            if wishes.once:
                runner.once(stop, wishes.only)
            else:
                runner.forever(stop, wishes.only)
        if wishes.once and not wishes.only:
            tables.remove_aside(project)


def analyse(spark: SparkSession, project: Project) -> Analysed:
    with Ledger(project.storage).alone():
        return analysing.analyse(spark, project)


def plan_replay(project: Project, origin: str) -> Plan:
    return replaying.make_plan(project, origin, topic_ends(project))


def backfill(spark: SparkSession, project: Project, start: str, end: str, *, dry_run: bool) -> Filled:
    with Ledger(project.storage).alone():
        generation = replaying.settle(project)
        found = topic_ends(project)
        backfilling.check(project, found)
        runner = Runner(spark, project, generation)
        return backfilling.backfill(runner, project, generation, start, end, found, dry_run=dry_run)


def check_source(project: Project) -> None:
    """See that the source is there: a wrong address is told before Java has started."""
    if project.pipeline.kind == "events":
        with connect(project) as client:
            ends(client, project.source.topics)


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
