"""Row tests of a pipeline: compares what its layers make of records in files with expected rows.

        tests/late-order/records.jsonl     records, as `braid consume --json` prints them; a value may be plain JSON
        tests/late-order/silver.jsonl      the rows expected from the stage silver, a JSON object each

Tests need no server, stream or checkpoint. Rows are compared as the stage's own types, in any order, in the columns
that a file names, or in all columns if it names none. Unknown stages and columns are refused, so that no test passes
without comparing anything.
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
"""The topic of records that do not name one."""
LINES_MAX: Final = 40

Rows = Callable[[str], DataFrame]
"""Returns a stage's rows of the test's records."""


class Compared(msgspec.Struct, frozen=True):
    """The result for a file of expected rows; `missing` and `unexpected` are JSON lines, with repetitions."""

    test: str
    stage: str
    count: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return not self.missing and not self.unexpected

    def sentences(self) -> list[str]:
        """Return `late-order: silver: 2 rows, as expected`, or the differences, one per line."""
        title = f"{self.test}: {self.stage}: {self.count} {'row' if self.count == 1 else 'rows'}"
        if self.is_right:
            return [f"{title}, as expected"]
        # Sorted by text: a slightly wrong row is next to the expected one.
        lines = sorted([(row, "-") for row in self.missing] + [(row, "+") for row in self.unexpected])
        shown = [f"  {sign} {row}" for row, sign in lines[:LINES_MAX]]
        left = [f"  … and {len(lines) - LINES_MAX} more"] if len(lines) > LINES_MAX else []
        return [f"{title}; - {len(self.missing)} missing, + {len(self.unexpected)} not expected", *shown, *left]


def folders(project: Project, only: frozenset[str]) -> list[Path]:
    """Return the folders of tests; the refusal for none says how to add one."""
    home = project.folder / TESTS
    folders_with_tests = sorted(path.parent for path in home.glob(f"*/{RECORDS}"))
    if not folders_with_tests:
        raise refusal(f"there are no tests: write records to {home}/NAME/{RECORDS} and the rows of silver beside them")
    if unknown := sorted(only - {path.name for path in folders_with_tests}):
        raise refusal(
            f"unknown test {unknown[0]!r}; the tests are {', '.join(path.name for path in folders_with_tests)}"
        )
    return [path for path in folders_with_tests if not only or path.name in only]


def run(spark: SparkSession, project: Project, test: Path, *, update: bool = False) -> list[Compared]:
    """Compare all rows that a test names; with `update`, replace the expected rows with the actual ones."""
    stages, rows = _stages(spark, project, _records(spark, project, test / RECORDS))
    files = sorted(path for path in test.glob(f"*{SUFFIX}") if path.name != RECORDS)
    if unknown := [path for path in files if path.stem not in stages]:
        raise refusal(f"{unknown[0]}: unknown stage {unknown[0].stem!r}; the stages are {', '.join(stages)}")
    if not files:
        raise refusal(f"{test} has no expected rows: create an empty silver{SUFFIX}, and fill it with `--update`")
    return [_compare(test.name, path, _plain(path.stem, rows(path.stem)), update=update) for path in files]


# -- actual rows ---------------------------------------------------------------------------------------------------


def _records(spark: SparkSession, project: Project, path: Path) -> DataFrame:
    rows: list[tuple[object, ...]] = []
    for number, line in _lines(path):
        given = _object(path, number, line)
        try:
            record, partition = read_json(msgspec.json.encode({**given, "value": _text(given.get("value"))}))
        except ValueError as error:
            raise refusal(f"{path}:{number}: {error}") from None
        when = TIME if record.timestamp_ms is None else datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
        place = given.get("topic", project.source.topics[0]), partition or 0, given.get("offset", len(rows))
        rows.append((*place, when, record.key, record.value, list(record.headers) or None))
    return spark.createDataFrame(rows, records.SCHEMA)


def _text(value: object) -> object:
    """Parse a value: text, `{"base64": …}`, or any other JSON as written."""
    if value is None or isinstance(value, str) or (isinstance(value, dict) and set(value) == {"base64"}):
        return value
    return msgspec.json.encode(value).decode()


def _stages(spark: SparkSession, project: Project, raw: DataFrame) -> tuple[list[str], Rows]:
    if project.is_declarative:
        declared = engine.for_batches(spark, project, Generation())
        return list(declared.flows), lambda name: declared.rows(name, raw)
    if project.pipeline.kind != "events":
        raise refusal(f'a pipeline of kind = "{project.pipeline.kind}" reads no records: it cannot be tested with rows')
    # `gaps` keeps versions across batches: it is not a function of a batch.
    stages = {each.name: each for each in stages_of(Layers(spark, project), 1) if each.name != "gaps"}

    def read(stage: Stage) -> DataFrame:
        return raw if stage.reads == SOURCE else stages[stage.reads].rows(read(stages[stage.reads]))

    def rows(name: str) -> DataFrame:
        made = stages[name].checked(read(stages[name]))
        match stages[name].writes:
            case ToKeys(_, last):
                return last(made)
            case ToTable(table) if merge := project.pipeline.tables.upsert.get(table):
                return upsert.last_rows(made, merge.key, merge.order)
            case _:
                return made

    return list(stages), cache(rows)


# -- comparing -----------------------------------------------------------------------------------------------------


def _plain(stage: str, rows: DataFrame) -> DataFrame:
    """Convert rows to a readable form: bytes as text, a dead letter with its reason."""
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
            return StructType([StructField(field.name, _of_text(field.dataType)) for field in kind.fields])
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
    """Return the non-empty lines, numbered from 1."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"{path} cannot be read: {error}") from error
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise refusal(f"{path}:{number}: not a JSON object: {error}") from None
