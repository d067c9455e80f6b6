"""The operations of a pipeline: run, replay, backfill, compact, status.

Does not handle: arguments, terminals, signals; the caller requests a stop.
Every operation that changes something holds the ledger's lock, and first completes an interrupted replay.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import SparkSession

import braidlog.spark
from braidlog.client.errors import Refusal, RefusedError
from braidlog.spark.pipeline.checkpoints import Offsets
from braidlog.spark.pipeline.config import Run, refusal
from braidlog.spark.pipeline.declarative import backfill as flow_backfill
from braidlog.spark.pipeline.declarative import engine as declarative
from braidlog.spark.pipeline.declarative.engine import Engine
from braidlog.spark.pipeline.layers import tables
from braidlog.spark.pipeline.ledger import Generation, Ledger
from braidlog.spark.pipeline.progress import ProgressRecorder, StageProgress
from braidlog.spark.pipeline.progress_reporting import Reporter, report
from braidlog.spark.pipeline.project import Project
from braidlog.spark.pipeline.replay import backfill as backfilling
from braidlog.spark.pipeline.replay import replay
from braidlog.spark.pipeline.replay.backfill import Filled
from braidlog.spark.pipeline.replay.replay import Plan
from braidlog.spark.pipeline.stage_runner import Runner, Stopped, StopRequest, connect, ends
from braidlog.spark.pipeline.status import places
from braidlog.spark.pipeline.wire_log import pipeline
from braidlog.spark.pipeline.wire_log.pipeline import Analysed

SHUFFLE_PARTITIONS: Final = "4"
"""Spark's default of two hundred is for clusters; stateful stages keep the number with which they began."""


_left_behind: Final[list[ExitStack]] = []
"""Locks of stopped pipelines; the process holds them until it ends."""


class Wishes(msgspec.Struct, frozen=True):
    """Options of a command, which override the file."""

    master: str = ""
    conf: dict[str, str] = {}
    admin: str | None = None
    token: str = ""
    once: bool = False
    """Process all existing records, then end."""
    only: frozenset[str] = frozenset()
    """Run only these stages; all if it is empty."""


@contextmanager
def session(project: Project, wishes: Wishes) -> Iterator[SparkSession]:
    """Provide a Spark session; Spark Connect for declarative pipelines."""
    run: Run = project.pipeline.run
    conf = {"spark.sql.shuffle.partitions": SHUFFLE_PARTITIONS, "spark.ui.showConsoleProgress": "false"}
    master = wishes.master or run.master

    def made(**more: str) -> SparkSession:
        name = f"braid pipeline {project.name}"
        return braidlog.spark.session(name, master, log_level="ERROR", **conf | more | run.conf | wishes.conf)

    if project.is_declarative:
        with declarative.connected(master, lambda **server: made(**declarative.DEFAULTS, **server)) as found:
            yield found
        return
    spark = made()
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def test_session(project: Project, wishes: Wishes) -> Iterator[SparkSession]:
    """Provide a small local Spark session for a few rows."""
    few = {"spark.sql.shuffle.partitions": "1", "spark.default.parallelism": "1", "spark.ui.enabled": "false"}
    conf = few | project.pipeline.run.conf | wishes.conf
    spark = braidlog.spark.session(
        f"braid pipeline test {project.name}", wishes.master or "local[1]", log_level="ERROR", **conf
    )
    try:
        yield spark
    finally:
        spark.stop()


def _reported(
    spark: SparkSession,
    project: Project,
    generation: Generation,
    wishes: Wishes,
    show: Callable[[StageProgress], object],
) -> Reporter:
    admin = project.pipeline.report.admin if wishes.admin is None else wishes.admin
    recorder = ProgressRecorder(Ledger(project.storage), generation, show)
    locations = partial(places, project)
    return report(spark, admin or None, wishes.token, pipeline=project.name, listeners=(recorder,), tables=locations)


def run(
    spark: SparkSession,
    project: Project,
    wishes: Wishes,
    stop: StopRequest,
    show: Callable[[StageProgress], object],
    plan: Plan | None = None,
) -> None:
    """Run the stages until they are done or stopped. With a plan, begin its replay first."""
    with Ledger(project.storage).alone() as held:
        if plan is not None:
            if Ledger(project.storage).generation().latest != plan.generation - 1:
                raise refusal("another replay has begun since this one was planned; plan it again")
            replay.begin(project, plan)
        generation = replay.settle(project)
        with _reported(spark, project, generation, wishes, show) as reporter:
            if project.is_declarative:
                try:
                    _update(Engine(spark, project, generation, reporter), wishes, stop)
                except Stopped:
                    # Flows of an abandoned update keep writing until their session has ended.
                    _left_behind.append(held.pop_all())
                    raise
            else:
                _run_stages(Runner(spark, project, generation, reporter), project, generation, wishes, stop)
        if wishes.once and not wishes.only:
            tables.remove_aside(project)


def _update(engine: Engine, wishes: Wishes, stop: StopRequest) -> None:
    if wishes.only:
        raise refusal("--stage: Spark's own pipelines always run all flows that write to sinks")
    if wishes.once:
        engine.once(stop)
    else:
        engine.forever(stop)


def _run_stages(runner: Runner, project: Project, generation: Generation, wishes: Wishes, stop: StopRequest) -> None:
    runner.prepare()
    names = {stage.name for stage in runner.stages}
    if unknown := sorted(wishes.only - names):
        raise refusal(f"unknown stage {unknown[0]!r}; the stages are {', '.join(sorted(names))}")
    if generation.from_bronze:
        replay.rebuild_from_bronze(runner, project)
    if wishes.once:
        runner.once(stop, wishes.only)
    else:
        runner.forever(stop, wishes.only)


def check_dry_run(project: Project) -> None:
    if not project.is_declarative:
        raise refusal('--dry-run: only a pipeline of kind = "sdp" has a graph that Spark checks')


def dry_run(spark: SparkSession, project: Project) -> list[str]:
    """Return the validated flows, as sentences."""
    engine = Engine(spark, project, Ledger(project.storage).generation())
    return [flow.sentence() for flow in engine.dry_run()]


def analyse(spark: SparkSession, project: Project) -> Analysed:
    with Ledger(project.storage).alone():
        return pipeline.analyse(spark, project)


def plan_replay(project: Project, origin: str) -> Plan:
    return replay.make_plan(project, origin, topic_ends(project))


def check_backfill(project: Project) -> None:
    """Refuse an impossible backfill before Java is started."""
    if project.is_declarative and not project.flows():
        raise refusal(backfilling.NOT_RUN)


def backfill(spark: SparkSession, project: Project, start: str, end: str, *, dry_run: bool) -> Filled:
    with Ledger(project.storage).alone():
        generation = replay.settle(project)
        source_ends = topic_ends(project)
        if project.is_declarative:
            return flow_backfill.backfill(spark, project, generation, start, end, source_ends, dry_run=dry_run)
        backfilling.check(project, source_ends)
        runner = Runner(spark, project, generation)
        return backfilling.backfill(runner, project, generation, start, end, source_ends, dry_run=dry_run)


def check_source(project: Project) -> None:
    """Check that the source can be reached: a wrong address is reported before Java is started."""
    if project.pipeline.kind != "wire-log":
        with connect(project) as client:
            ends(client, project.source.topics)


def topic_ends(project: Project) -> Offsets:
    """Return the ends of all topics of a pipeline, without those of layers that were never written."""
    layers = [] if project.is_declarative else [project.silver_topic, project.windows_topic]
    with connect(project) as client:
        topic_ends = ends(client, project.source.topics)
        for topic in layers:
            try:
                topic_ends |= ends(client, [topic])
            except RefusedError as error:
                if error.reason is not Refusal.TOPIC_NOT_FOUND:
                    raise
    return topic_ends
