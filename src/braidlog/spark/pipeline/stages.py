"""The stages of a pipeline as a table: what each reads, computes and writes.

A stage reads one layer and writes one output. The stages that write a layer run in an earlier wave than its readers.
Does not handle: starting, monitoring or stopping queries.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braidlog.spark.pipeline.config import Expectation, OwnStage, State, Windows
from braidlog.spark.pipeline.layers import gaps, gold, records, silver, transforms
from braidlog.spark.pipeline.layers.expectations import watched
from braidlog.spark.pipeline.layers.transforms import Transform
from braidlog.spark.pipeline.project import SOURCE, Project

WAVES: Final = {SOURCE: 0, "silver": 1, "windows": 2}
"""The wave in which a layer can be read: after the stages of earlier waves."""

Frames = Callable[[DataFrame], DataFrame]


class ToTable(msgspec.Struct, frozen=True):
    table: str


class ToTopic(msgspec.Struct, frozen=True):
    topic: str


class ToKeys(msgspec.Struct, frozen=True):
    """Keys of the store. `last` reduces a batch to one row per key."""

    servers: str
    last: Frames


class Stage(msgspec.Struct, frozen=True):
    """`make` returns rows, on which expectations are checked; `form` converts them for the target."""

    name: str
    reads: str
    make: Frames
    writes: ToTable | ToTopic | ToKeys
    form: Frames = lambda rows: rows
    expectations: tuple[Expectation, ...] = ()

    @property
    def wave(self) -> int:
        return WAVES[self.reads]

    def checked(self, records_read: DataFrame) -> DataFrame:
        return watched(self.make(records_read), self.expectations)

    def rows(self, records_read: DataFrame) -> DataFrame:
        return self.form(self.checked(records_read))


class Layers:
    """The schemas of layers, computed once per pipeline, because that needs Spark."""

    def __init__(self, spark: SparkSession, project: Project) -> None:
        self.project = project
        self.spark = spark
        self.transforms: list[Transform] = [transforms.load(project.folder, name) for name in project.silver.transforms]
        self.silver_schema: StructType = silver.schema_of(spark, project.silver, self.transforms)

    def windows_schema(self) -> StructType:
        settings = self.project.pipeline.gold.windows
        assert settings is not None
        return gold.windows(self.spark.createDataFrame([], self.silver_schema), settings).schema

    def silver_rows(self, raw: DataFrame) -> DataFrame:
        """Return typed rows without duplicates."""
        settings = self.project.silver
        return silver.once(silver.rows(raw, settings, self.transforms), settings)

    def from_silver(self, raw: DataFrame) -> DataFrame:
        return silver.from_topic(raw, self.silver_schema)


def stages_of(layers: Layers, generation: int) -> list[Stage]:
    """Return all stages, in the order of their waves."""
    project = layers.project
    stages = _of_source(layers, generation)
    stages.append(Stage("silver-table", "silver", layers.from_silver, ToTable("silver")))
    if versions := project.silver.versions:
        stages.append(
            Stage("gaps", "silver", lambda raw: gaps.gaps(layers.from_silver(raw), versions), ToTable("gaps"))
        )
    if state := project.pipeline.gold.state:
        stages.append(_state(layers, state))
    if windows := project.pipeline.gold.windows:
        stages += _windows(layers, windows)
    stages += [_own(layers, own) for own in project.pipeline.stages]
    expected = project.pipeline.expectations
    complete = [
        msgspec.structs.replace(stage, expectations=tuple(each for each in expected if each.stage == stage.name))
        for stage in stages
    ]
    return sorted(complete, key=lambda stage: stage.wave)


def _of_source(layers: Layers, generation: int) -> list[Stage]:
    project = layers.project
    dead = partial(silver.dead_letters, silver=project.silver, pipeline=project.name, generation=generation)
    return [
        Stage("bronze", SOURCE, records.as_it_came, ToTable("bronze")),
        Stage("silver", SOURCE, layers.silver_rows, ToTopic(project.silver_topic), silver.to_topic),
        Stage("dead-letters", SOURCE, dead, ToTopic(project.dead_letter_topic)),
    ]


def _state(layers: Layers, settings: State) -> Stage:
    last = partial(gold.last_of_each, settings=settings, name=layers.project.name)
    return Stage("state", "silver", layers.from_silver, ToKeys(settings.servers, last))


def _windows(layers: Layers, settings: Windows) -> list[Stage]:
    schema = layers.windows_schema()
    return [
        Stage(
            "windows",
            "silver",
            lambda raw: gold.windows(layers.from_silver(raw), settings),
            ToTopic(layers.project.windows_topic),
            partial(gold.windows_to_topic, settings=settings),
        ),
        Stage("windows-table", "windows", lambda raw: silver.from_topic(raw, schema), ToTable("windows")),
    ]


def _own(layers: Layers, own: OwnStage) -> Stage:
    transform = transforms.load(layers.project.folder, own.transform)
    schema = layers.silver_schema if own.reads == "silver" else layers.windows_schema()

    def make(raw: DataFrame) -> DataFrame:
        rows = silver.from_topic(raw, schema)
        return transform(rows.withWatermark(own.time, own.late) if own.late else rows)

    writes = ToTable(own.table) if own.table else ToTopic(own.topic)
    return Stage(own.name, own.reads, make, writes)
