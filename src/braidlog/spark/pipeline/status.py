"""How a pipeline stands: per stage its last batch, how far it has read, how far it is behind, what its expectations counted.

Knows: checkpoints, the progress of batches, and the ends of topics. Refuses to know: Spark: it is asked while nothing runs, too.
Invariant: lag is what the server has and the checkpoint has not committed; nothing is guessed where the server is not asked.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from braidlog.spark.pipeline.checkpoints import Offsets, position
from braidlog.spark.pipeline.ledger import BatchProgress, Ledger
from braidlog.spark.pipeline.project import SOURCE, Project

DEAD_LETTERS = ("dead-letters", "dead_letters")
"""The stage; Spark's own pipelines have no dashes in names."""


class StageStatus(msgspec.Struct, frozen=True):
    """`lag` is None if the server was not asked. Rows and violations are those of the batches in the ledger: `rows` were read,
    `written` came out (None where Spark does not count them), `dead` of those as dead letters, `late_rows` were dropped."""

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
    """`tables`: where those are that the pipeline writes."""

    pipeline: str
    stages: tuple[StageStatus, ...]
    tables: dict[str, str] = {}


def layers_read(project: Project) -> dict[str, str]:
    """Which layer each stage reads, as far as the settings tell; of a declarative pipeline, as far as it has run."""
    if project.is_declarative:
        return dict.fromkeys(project.flows(), SOURCE)
    found = {"bronze": SOURCE, "silver": SOURCE, "dead-letters": SOURCE, "silver-table": "silver"}
    if project.silver.versions:
        found["gaps"] = "silver"
    if project.pipeline.gold.state:
        found["state"] = "silver"
    if project.pipeline.gold.windows:
        found |= {"windows": "silver", "windows-table": "windows"}
    return found | {own.name: own.reads for own in project.pipeline.stages}


def status(project: Project, ends: Offsets | None) -> Status:
    """`ends`: the next offset of each partition of the topics, if a server was asked."""
    ledger = Ledger(project.storage)
    generation = ledger.generation()
    recorded: dict[str, list[BatchProgress]] = defaultdict(list)
    for each in ledger.batches():
        if each.generation == generation.of(each.stage):
            recorded[each.stage].append(each)
    found = []
    for stage, layer in layers_read(project).items():
        number = generation.of(stage)
        where = position(project.checkpoint(stage, number))
        begin = generation.starts.get(stage, {}).get("startingOffsets")
        batches = recorded[stage]
        known = [each.written for each in batches if each.written is not None]
        found.append(
            StageStatus(
                stage,
                layer,
                number,
                where.batch,
                where.offsets,
                None if ends is None else _lag(project.layer_topics(layer), where.offsets, ends, begin),
                sum(each.rows for each in batches),
                sum(known) if known or not batches else None,
                sum(known) if stage in DEAD_LETTERS else 0,
                batches[-1].time if batches else None,
                batches[-1].rows_per_second if batches else None,
                sum(each.late_rows for each in batches),
                _violations(batches),
            )
        )
    return Status(project.name, tuple(found), places(project))


def places(project: Project) -> dict[str, str]:
    """Where the tables are that there are."""
    names = project.flows() if project.is_declarative else project.table_names()
    return {name: project.place(name) for name in names if project.is_in_store or project.table(name).is_dir()}


def _lag(topics: Iterable[str], read: Offsets, ends: Offsets, begin: str | None) -> int:
    """Before the first batch, from where the stage will begin to read."""
    starts: Offsets = msgspec.json.decode(begin, type=Offsets) if begin and begin.startswith("{") else {}
    lag = 0
    for topic in topics:
        for partition, end in ends.get(topic, {}).items():
            done = read.get(topic, {}).get(partition, starts.get(topic, {}).get(partition, 0))
            lag += max(end - max(done, 0), 0)
    return lag


def _violations(batches: list[BatchProgress]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in batches:
        for name, count in each.violations.items():
            found[name] = found.get(name, 0) + count
    return found
