"""Runs Spark's own pipelines: builds a graph from definition files, and runs updates of it, one after another.

Does not handle: what a flow computes or writes. An update reads the records that exist when its flows begin, and
ends. After a stop or a crash the next update resumes from the checkpoints. Spark retries a failed flow, then stops
the update.
"""

import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from braidlog.spark.pipeline.config import refusal
from braidlog.spark.pipeline.declarative.definitions import Declared, Flow, declaring, register
from braidlog.spark.pipeline.ledger import Generation
from braidlog.spark.pipeline.progress_reporting import Reporter
from braidlog.spark.pipeline.project import FLOWS, Project, seconds_of
from braidlog.spark.pipeline.stage_runner import (
    END_SECONDS_MAX,
    WAIT_SECONDS,
    StageFailed,
    Stopped,
    StopRequest,
    cause,
    ensure_topics,
)
from braidlog.spark.pipeline.stages import ToTopic

if TYPE_CHECKING:
    from pyspark.pipelines.cli import PipelineSpec

SPEC: Final = "spark-pipeline.yml"
REMOTE: Final = "sc://"
DEFAULTS: Final = {
    # Spark gives the Python process of each source ten seconds to start: a busy machine needs more than three
    # attempts.
    "spark.sql.pipelines.maxFlowRetryAttempts": "10",
    "spark.sql.pipelines.execution.maxConcurrentFlows": "4",
}
_SERVER: Final = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
}
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable
_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
_FAILED: Final = re.compile(r"Flow '(?:.*\.)?(?P<flow>[^.']+)' has FAILED")
_MISSING: Final = "Spark Declarative Pipelines need Spark Connect: pip install 'braidlog[sdp]'"


@contextmanager
def connected(master: str, session: Callable[..., SparkSession]) -> Iterator[SparkSession]:
    """Provide a Spark Connect session: of the server in `sc://host`, or of a private server inside this process."""
    try:
        from pyspark.sql.connect.session import SparkSession as Remote  # noqa: PLC0415 - an extra
    except (ImportError, PySparkException) as error:
        raise ImportError(_MISSING) from error
    own: SparkSession | None = None
    url = master
    if not master.startswith(REMOTE):
        # Any client that connects can run code: require a token that only this process and its Java process know.
        os.environ.setdefault(_TOKEN, secrets.token_hex(16))
        own = session(**_SERVER)
        service: Any = getattr(own._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")  # noqa: SLF001
        # The only host name for which Spark's client sends a token without TLS.
        url = f"{REMOTE}localhost:{getattr(service, 'MODULE$').localPort()}"
    before = os.environ.get(_MODE)
    os.environ[_MODE] = "1"
    try:
        remote = Remote.builder.remote(url).getOrCreate()
        try:
            yield cast("SparkSession", remote)
        finally:
            with suppress(PySparkException):
                remote.stop()
    finally:
        if before is None:
            del os.environ[_MODE]
        if own is not None:
            own.stop()


def _spec(project: Project) -> "PipelineSpec":
    try:
        from pyspark.pipelines.cli import load_pipeline_spec  # noqa: PLC0415 - an extra
    except (ImportError, PySparkException) as error:
        raise ImportError(_MISSING) from error
    path = project.folder / SPEC
    if not path.is_file():
        raise refusal(f"{path} does not exist; `braid pipeline init --template sdp` creates it")
    try:
        return load_pipeline_spec(path)
    except PySparkException as error:
        raise refusal(f"{path} cannot be used: {cause(str(error))}") from error


def definitions(project: Project) -> list[Path]:
    """Return the Python files that the spec names, in a fixed order."""
    paths = {path for library in _spec(project).libraries for path in project.folder.glob(library.include)}
    return sorted(path for path in paths if path.suffix == ".py")


def declare(spark: SparkSession, project: Project, generation: Generation) -> tuple[str, list[Flow]]:
    """Register the definition files as a Spark graph; return its id and its flows."""
    from pyspark.pipelines.cli import register_definitions  # noqa: PLC0415 - an extra
    from pyspark.pipelines.spark_connect_graph_element_registry import (  # noqa: PLC0415
        SparkConnectGraphElementRegistry,
    )
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph  # noqa: PLC0415

    spec = _spec(project)
    try:
        graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
        registry = SparkConnectGraphElementRegistry(spark, graph)
        with (
            declaring(Declared(project, generation, register, is_batch=False)) as found,
            redirect_stdout(sys.stderr),  # Spark prints which files it loads; stdout is for the command's output
        ):
            register_definitions(project.folder / SPEC, registry, spec, spark, graph)
    except PySparkException as error:
        raise refusal(f"the definitions cannot be used: {cause(str(error))}") from error
    return graph, list(found.flows.values())


def for_batches(spark: SparkSession, project: Project, generation: Generation) -> Declared:
    """Load the functions of the definition files for batches, without registering them with Spark's pipelines."""
    with declaring(Declared(project, generation, lambda *_: None, is_batch=True)) as found:
        for path in definitions(project):
            spec = util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = util.module_from_spec(spec)
            module.__dict__["spark"] = spark  # as Spark's own loader does
            spec.loader.exec_module(module)
    return found


def _drop(spark: SparkSession, graph: str) -> None:
    """Drop a graph on the server: each update creates one, and Spark keeps graphs as long as the session."""
    import pyspark.sql.connect.proto as pb2  # noqa: PLC0415 - an extra

    command = pb2.Command()
    command.pipeline_command.drop_dataflow_graph.dataflow_graph_id = graph
    with suppress(PySparkException):  # the session has ended, and its graphs with it
        cast("Any", spark).client.execute_command(command)


class Engine:
    """Runs updates of one project in one session."""

    def __init__(
        self, spark: SparkSession, project: Project, generation: Generation, reporter: Reporter | None = None
    ) -> None:
        self._spark = spark
        self._project = project
        self._generation = generation
        self._reporter = reporter

    def dry_run(self) -> list[Flow]:
        """Let Spark validate the graph's names and types, without reading or writing."""
        graph, flows = declare(self._spark, self._project, self._generation)
        self._attend(graph, StopRequest(), dry=True)
        return flows

    def once(self, stop: StopRequest) -> None:
        """Process all existing records, then return."""
        graph, flows = declare(self._spark, self._project, self._generation)
        ensure_topics(self._project, [flow.writes.topic for flow in flows if isinstance(flow.writes, ToTopic)])
        self._attend(graph, stop)
        if self._reporter is not None:
            self._reporter.wait_for_ends(sum(flow.writes is not None for flow in flows), END_SECONDS_MAX)

    def forever(self, stop: StopRequest) -> None:
        """Run until stopped: each update ends, and the next begins `trigger` later."""
        while True:
            self.once(stop)
            if stop.wait(seconds_of(self._project.pipeline.run.trigger)):
                raise Stopped

    def _attend(self, graph: str, stop: StopRequest, *, dry: bool = False) -> None:
        update = _Update(self._spark, graph, (self._project.storage / FLOWS).as_uri(), dry=dry)
        update.start()
        while update.is_alive():
            if stop.wait(WAIT_SECONDS):
                # The update is abandoned: its session ends with the command, and its flows with the session.
                raise Stopped
        _drop(self._spark, graph)
        if update.error is not None:
            why = cause(str(update.error))
            raise StageFailed(update.failed, why, by_expectation=why.startswith("expectation "))


class _Update(threading.Thread):
    """Consumes an update's events until it has ended, while the main thread waits and handles signals."""

    def __init__(self, spark: SparkSession, graph: str, storage: str, *, dry: bool) -> None:
        super().__init__(name="pipeline update", daemon=True)
        self._spark = spark
        self._graph = graph
        self._storage = storage
        self._dry = dry
        self.failed = "graph"
        self.error: Exception | None = None

    def run(self) -> None:
        from pyspark.pipelines.spark_connect_pipeline import start_run  # noqa: PLC0415 - an extra

        try:
            for result in start_run(
                self._spark,
                self._graph,
                full_refresh=[],
                full_refresh_all=False,
                refresh=[],
                dry=self._dry,
                storage=self._storage,
            ):
                event = result.get("pipeline_event_result")
                if event is not None and (failed := _FAILED.search(event.event.message)):
                    self.failed = failed["flow"]
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            self.error = error
