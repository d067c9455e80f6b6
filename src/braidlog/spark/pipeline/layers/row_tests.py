"""Tests of a pipeline on rows: what its layers make of records that are written in files.

    tests/late-order/records.jsonl     records, as `braid consume --json` prints them; a value may be JSON itself
    tests/late-order/silver.jsonl      the rows that the stage silver must make of them, a JSON object each

Knows: fixtures, and layers as functions of batches. Refuses to know: servers, streams, checkpoints: none is needed or touched.
Invariants: rows are compared as the stage's own types, without order, in the columns that a file names and in all if it names
none; a name that is no stage or no column is refused, so that no test passes by saying nothing.
"""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from braidlog.model.record_json import read_json
from braidlog.spark import upsert
from braidlog.spark.pipeline.config import refusal
from braidlog.spark.pipeline.declarative import engine
from braidlog.spark.pipeline.layers import records
from braidlog.spark.pipeline.ledger import Generation
from braidlog.spark.pipeline.project import SOURCE, TESTS, Project
from braidlog.spark.pipeline.stage_runner import cause
from braidlog.spark.pipeline.stages import Layers, Stage, ToKeys, ToTable, stages_of
from braidlog.spark.pipeline.status import DEAD_LETTERS

RECORDS: Final = "records.jsonl"
SUFFIX: Final = ".jsonl"
TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Of records that do not say one."""
LINES_MAX: Final = 40

Rows = Callable[[str], DataFrame]
"""What a stage makes of the records at hand."""


class Compared(msgspec.Struct, frozen=True):
    """A file of expected rows; `missing` and `unexpected` are JSON, as often as they are too few or too many."""

    test: str
    stage: str
    count: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return not self.missing and not self.unexpected

    def sentences(self) -> list[str]:
        """`late-order: silver: 2 rows, as expected`, or what differs, one line under the other."""
        title = f"{self.test}: {self.stage}: {self.count} {'row' if self.count == 1 else 'rows'}"
        if self.is_right:
            return [f"{title}, as expected"]
        # By text: a row that is a little other than it should be stands next to what it should be.
        lines = sorted([(row, "-") for row in self.missing] + [(row, "+") for row in self.unexpected])
        shown = [f"  {sign} {row}" for row, sign in lines[:LINES_MAX]]
        left = [f"  … and {len(lines) - LINES_MAX} more"] if len(lines) > LINES_MAX else []
        return [f"{title}; - {len(self.missing)} missing, + {len(self.unexpected)} not expected", *shown, *left]


def folders(project: Project, only: frozenset[str]) -> list[Path]:
    """The folders of tests, or a refusal that says how one begins."""
    home = project.folder / TESTS
    found = sorted(path.parent for path in home.glob(f"*/{RECORDS}"))
    if not found:
        raise refusal(f"there is no test: write records into {home}/NAME/{RECORDS} and the rows of silver beside them")
    if unknown := sorted(only - {path.name for path in found}):
        raise refusal(f"there is no test {unknown[0]!r}; there are {', '.join(path.name for path in found)}")
    return [path for path in found if not only or path.name in only]


def run(spark: SparkSession, project: Project, test: Path, *, update: bool = False) -> list[Compared]:
    """Compare all rows that a test names; with `update`, write what came in the place of what was expected."""
    stages, rows = _stages(spark, project, _records(spark, project, test / RECORDS))
    files = sorted(path for path in test.glob(f"*{SUFFIX}") if path.name != RECORDS)
    if unknown := [path for path in files if path.stem not in stages]:
        raise refusal(f"{unknown[0]}: there is no stage {unknown[0].stem!r}; there are {', '.join(stages)}")
    if not files:
        raise refusal(f"{test} says of no stage what it makes: write silver{SUFFIX}; empty, `--update` fills it")
    return [_compare(test.name, path, _plain(path.stem, rows(path.stem)), update=update) for path in files]


# -- what is there -------------------------------------------------------------------------------------------------


def _records(spark: SparkSession, project: Project, path: Path) -> DataFrame:
    found: list[tuple[object, ...]] = []
    for number, line in _lines(path):
        given = _object(path, number, line)
        try:
            record, partition = read_json(msgspec.json.encode({**given, "value": _text(given.get("value"))}))
        except ValueError as error:
            raise refusal(f"{path}:{number}: {error}") from None
        when = TIME if record.timestamp_ms is None else datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
        place = given.get("topic", project.source.topics[0]), partition or 0, given.get("offset", len(found))
        found.append((*place, when, record.key, record.value, list(record.headers) or None))
    return spark.createDataFrame(found, records.SCHEMA)


def _text(value: object) -> object:
    """A value is text or `{"base64": …}`; any other JSON is meant as it is written."""
    if value is None or isinstance(value, str) or (isinstance(value, dict) and set(value) == {"base64"}):
        return value
    return msgspec.json.encode(value).decode()


def _stages(spark: SparkSession, project: Project, raw: DataFrame) -> tuple[list[str], Rows]:
    if project.is_declarative:
        declared = engine.for_batches(spark, project, Generation())
        return list(declared.flows), lambda name: declared.rows(name, raw)
    if project.pipeline.kind != "events":
        raise refusal(
            f'a pipeline of kind = "{project.pipeline.kind}" reads no records: there is nothing to test it with'
        )
    # What remembers versions from batch to batch is no function of a batch.
    stages = {each.name: each for each in stages_of(Layers(spark, project), 1) if each.name != "gaps"}

    def read(stage: Stage) -> DataFrame:
        return raw if stage.reads == SOURCE else stages[stage.reads].rows(read(stages[stage.reads]))

    def rows(name: str) -> DataFrame:
        made = stages[name].checked(read(stages[name]))
        match stages[name].writes:
            case ToKeys(_, last):
                return last(made)
            case ToTable(table) if wanted := project.pipeline.tables.upsert.get(table):
                return upsert.last_rows(made, wanted.key, wanted.order)
            case _:
                return made

    return list(stages), cache(rows)


# -- what differs --------------------------------------------------------------------------------------------------


def _plain(stage: str, rows: DataFrame) -> DataFrame:
    """Rows as a person writes them: bytes as text, a dead letter with its reason."""
    if stage in DEAD_LETTERS:
        rows = rows.withColumn("reason", records.header("braid.reason"))
    return rows.select(*[f.col(field.name).cast(_of_text(field.dataType)) for field in rows.schema.fields])


def _of_text(kind: DataType) -> DataType:
    match kind:
        case BinaryType():
            return StringType()
        case ArrayType():
            return ArrayType(_of_text(kind.elementType))
        case MapType():
            return MapType(_of_text(kind.keyType), _of_text(kind.valueType))
        case StructType():
            return StructType([StructField(each.name, _of_text(each.dataType)) for each in kind.fields])
        case _:
            return kind


def _compare(test: str, path: Path, rows: DataFrame, *, update: bool) -> Compared:
    lines = list(_lines(path))
    names = list(dict.fromkeys(name for number, line in lines for name in _object(path, number, line))) or rows.columns
    if unknown := [name for name in names if name not in rows.columns]:
        raise refusal(f"{path}: {path.stem} has no column {unknown[0]!r}; it has {', '.join(rows.columns)}")
    chosen = rows.select(*names)
    came = _as_json(chosen)
    if update:
        path.write_text("".join(f"{row}\n" for row in sorted(came.elements())), encoding="utf-8")
        return Compared(test, path.stem, came.total())
    written = rows.sparkSession.createDataFrame([(line,) for _, line in lines], "line string")
    read = written.select(f.from_json("line", chosen.schema, {"mode": "FAILFAST"}).alias("row"))
    try:
        expected = _as_json(read.select("row.*"))
    except PySparkException as error:
        kinds = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in chosen.schema.fields)
        raise refusal(f"{path}: a row does not fit the columns of {path.stem}, {kinds}: {cause(str(error))}") from error
    missing, unexpected = expected - came, came - expected
    return Compared(test, path.stem, came.total(), tuple(missing.elements()), tuple(unexpected.elements()))


def _as_json(rows: DataFrame) -> "Counter[str]":
    text = records.as_json(f.struct("*")).cast("string")
    return Counter(row[0] for row in rows.select(text).collect())


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that say something, numbered as a person does."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"{path} cannot be read: {error}") from error
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise refusal(f"{path}:{number}: no JSON object: {error}") from None
