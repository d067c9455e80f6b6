"""The status of a pipeline: per stage its last batch, its offsets, its lag, and its violated expectations.

Reads checkpoints, the ledger, and the ends of topics; needs no Spark, and works while the pipeline runs.
Lag is what the server has and the checkpoint has not committed; it is unknown if the server was not contacted.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from braidlog.spark.pipeline.checkpoints import Offsets, position
from braidlog.spark.pipeline.ledger import BatchProgress, Ledger
from braidlog.spark.pipeline.project import SOURCE, Project

DEAD_LETTERS = ("dead-letters", "dead_letters")
"""The stage's name; Spark's own pipelines do not allow dashes."""


class StageStatus(msgspec.Struct, frozen=True):
    """The status of a stage. `lag` is None if the server was not contacted. The counts cover the batches in the
    ledger: `rows` were read, `written` came out (None if Spark does not count them), `dead` are dead letters among
    them, `late_rows` were dropped."""

    stage: str
    reads: str
    generation: int
    batch: int
    offsets: Offsets
    lag: int | None
    rows: int
    written: int | None
    dead: int
    last: str | None
    rows_per_second: float | None
    late_rows: int
    violations: dict[str, int]


class Status(msgspec.Struct, frozen=True):
    """`tables`: the locations of the tables that the pipeline writes."""

    pipeline: str
    stages: tuple[StageStatus, ...]
    tables: dict[str, str] = {}


def layers_read(project: Project) -> dict[str, str]:
    """Return the layer that each stage reads; of a declarative pipeline, only flows that have run."""
    if project.is_declarative:
        return dict.fromkeys(project.flows(), SOURCE)
    layers = {"bronze": SOURCE, "silver": SOURCE, "dead-letters": SOURCE, "silver-table": "silver"}
    if project.silver.versions:
        layers["gaps"] = "silver"
    if project.pipeline.gold.state:
        layers["state"] = "silver"
    if project.pipeline.gold.windows:
        layers |= {"windows": "silver", "windows-table": "windows"}
    return layers | {own.name: own.reads for own in project.pipeline.stages}


def status(project: Project, ends: Offsets | None) -> Status:
    """Return the status. `ends`: the next offset of each partition of the topics; None if the server was not
    contacted."""
    ledger = Ledger(project.storage)
    generation = ledger.generation()
    recorded: dict[str, list[BatchProgress]] = defaultdict(list)
    for each in ledger.batches():
        if each.generation == generation.of(each.stage):
            recorded[each.stage].append(each)
    stages = []
    for stage, layer in layers_read(project).items():
        number = generation.of(stage)
        where = position(project.checkpoint(stage, number))
        begin = generation.starts.get(stage, {}).get("startingOffsets")
        batches = recorded[stage]
        known = [batch.written for batch in batches if batch.written is not None]
        stages.append(
            StageStatus(
                stage,
                layer,
                number,
                where.batch,
                where.offsets,
                None if ends is None else _lag(project.layer_topics(layer), where.offsets, ends, begin),
                sum(batch.rows for batch in batches),
                sum(known) if known or not batches else None,
                sum(known) if stage in DEAD_LETTERS else 0,
                batches[-1].time if batches else None,
                batches[-1].rows_per_second if batches else None,
                sum(batch.late_rows for batch in batches),
                _violations(batches),
            )
        )
    return Status(project.name, tuple(stages), places(project))


def places(project: Project) -> dict[str, str]:
    """Return the locations of the existing tables."""
    names = project.flows() if project.is_declarative else project.table_names()
    return {name: project.place(name) for name in names if project.is_in_store or project.table(name).is_dir()}


def _lag(topics: Iterable[str], read: Offsets, ends: Offsets, begin: str | None) -> int:
    """Return the lag; before the first batch, from where the stage will begin to read."""
    starts: Offsets = msgspec.json.decode(begin, type=Offsets) if begin and begin.startswith("{") else {}
    lag = 0
    for topic in topics:
        for partition, end in ends.get(topic, {}).items():
            done = read.get(topic, {}).get(partition, starts.get(topic, {}).get(partition, 0))
            lag += max(end - max(done, 0), 0)
    return lag


def _violations(batches: list[BatchProgress]) -> dict[str, int]:
    violations: dict[str, int] = {}
    for batch in batches:
        for name, count in batch.violations.items():
            violations[name] = violations.get(name, 0) + count
    return violations
