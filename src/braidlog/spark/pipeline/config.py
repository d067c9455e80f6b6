"""`pipeline.toml`: the settings of a pipeline.

Returned settings are valid as far as the file alone shows; each error is one sentence that names the setting. Does
not handle: Spark, servers, whether files exist.
"""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Final, Literal, get_args, get_type_hints

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.reporting.node_report import LOCAL_ADMIN_URL
from braidlog.spark.lake import NO_PARQUET, STORES
from braidlog.wire.kafka import DIALECT as KAFKA
from braidlog.wire.mayfly import DIALECT as MAYFLY

FILE_NAME: Final = "pipeline.toml"
BUILT_IN: Final = (
    "bronze",
    "silver",
    "dead-letters",
    "silver-table",
    "gaps",
    "windows",
    "windows-table",
    "state",
)
"""Stage names that a pipeline of kind `events` defines."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_SPAN = re.compile(r"[1-9][0-9]* (millisecond|second|minute|hour|day)s?")
_A_SPAN = 'a duration is written "10 seconds", with milliseconds, seconds, minutes, hours or days'
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HEADER: Final = "header:"


def refusal(sentence: str) -> BrokerError:
    """Return the error for an invalid pipeline."""
    return BrokerError(Reason.INVALID_SETTING, sentence)


def is_uri(place: str) -> bool:
    return "://" in place


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file; unknown settings are refused."""


class Source(_Section, frozen=True):
    """The source of records."""

    topics: tuple[str, ...]
    servers: str = f"127.0.0.1:{KAFKA.port}"
    starting: Literal["earliest", "latest"] = "earliest"
    group: str = ""
    max_records_per_batch: int = 0


class Run(_Section, frozen=True):
    """How Spark runs the pipeline."""

    trigger: str = "10 seconds"
    master: str = "local[*]"
    conf: dict[str, str] = {}


class Upsert(_Section, frozen=True):
    """A table with one row per key."""

    key: tuple[str, ...]
    order: str


class Tables(_Section, frozen=True):
    """The lake tables."""

    format: Literal["delta", "iceberg"] = "delta"
    target_file_bytes: int = 128 * 1024 * 1024
    evolution: Literal["refuse", "add"] = "refuse"
    partition_by: dict[str, tuple[str, ...]] = {}
    upsert: dict[str, Upsert] = {}
    store: dict[str, str] = {}
    """Properties of the object store in `storage`, in pyiceberg's names."""
    catalog: dict[str, str] = {}
    """Iceberg tables in an object store: properties of the catalog, in pyiceberg's names."""


class Dedup(_Section, frozen=True):
    """What identifies duplicate records; if a part is missing, a record's position identifies it."""

    by: tuple[str, ...] = ()
    within: str = "1 hour"


class Versions(_Section, frozen=True):
    """An event-sourced topic: the versions of each aggregate increase by one."""

    aggregate: str
    version: str
    first: int | None = None
    forget_after: str = "7 days"


class Silver(_Section, frozen=True):
    """Turns records into columns."""

    schema: str
    required: tuple[str, ...] = ()
    event_time: str = ""
    transforms: tuple[str, ...] = ()
    topic: str = ""
    dedup: Dedup = Dedup()
    versions: Versions | None = None


class DeadLetters(_Section, frozen=True):
    """The destination of unreadable records."""

    topic: str = ""


class Windows(_Section, frozen=True):
    """Counts, and optionally latencies, per window of event time."""

    size: str = "1 minute"
    by: tuple[str, ...] = ()
    latency: str = ""
    late: str = "10 minutes"
    topic: str = ""


class State(_Section, frozen=True):
    """The last event of each key, in the key-value store."""

    key: str
    servers: str = MAYFLY.local_url
    prefix: str = ""
    order: str = "_offset"


class Gold(_Section, frozen=True):
    """What is computed from clean events."""

    windows: Windows | None = None
    state: State | None = None


class Expectation(_Section, frozen=True):
    """A check on every row that a stage writes."""

    stage: str
    name: str
    check: str
    on_violation: Literal["keep", "drop", "fail"] = "keep"


class OwnStage(_Section, frozen=True):
    """A custom stage: SQL or Python over a layer."""

    name: str
    transform: str
    reads: Literal["silver", "windows"] = "silver"
    table: str = ""
    topic: str = ""
    late: str = ""
    time: str = "_time"


class WireLog(_Section, frozen=True):
    """A node's wire log, as `braid serve --wire-log FILE --wire-format json` writes it."""

    log: str
    page: str = "wire-log.html"
    title: str = "Wire log"
    bins: int = 60


class Report(_Section, frozen=True):
    """Where to report progress."""

    admin: str = LOCAL_ADMIN_URL


class Alerts(_Section, frozen=True):
    """The limits of `status --check`; a stage that has read everything is never silent."""

    lag_records: int = 1_000_000
    silent: str = "1 hour"
    dead_letters: int = 1_000_000


class Pipeline(_Section, frozen=True):
    """A whole file."""

    name: str
    kind: Literal["events", "sdp", "wire-log"] = "events"
    storage: str = "storage"
    checkpoints: str = ""
    """If storage is a URI: the local folder of Spark's checkpoints and of the pipeline's state."""
    source: Source | None = None
    run: Run = Run()
    tables: Tables = Tables()
    silver: Silver | None = None
    dead_letters: DeadLetters = DeadLetters()
    gold: Gold = Gold()
    expectations: tuple[Expectation, ...] = ()
    stages: tuple[OwnStage, ...] = ()
    wire_log: WireLog | None = None
    report: Report = Report()
    alerts: Alerts = Alerts()


def read(folder: Path) -> Pipeline:
    """Read the pipeline of a project folder."""
    path = folder / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise refusal(f"{path} does not exist; `braid pipeline init {folder}` creates it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"{path} cannot be read: {error}") from error
    return parse(text)


def parse(text: str) -> Pipeline:
    """Parse the text of a pipeline file."""
    try:
        pipeline = msgspec.convert(tomllib.loads(text), Pipeline)
    except tomllib.TOMLDecodeError as error:
        raise refusal(f"{FILE_NAME} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        sentence = _sentence(str(error))
        if sentence.startswith("[tables.format]") and "'parquet'" in sentence:
            sentence = f"[tables] format = 'parquet': {NO_PARQUET}"
        raise refusal(f"{FILE_NAME}: {sentence}") from error
    for complaint in _complaints(pipeline):
        raise refusal(f"{FILE_NAME}: {complaint}")
    return pipeline


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<where>[^`]*)`)?")
_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?", re.DOTALL)
_INDEX = re.compile(r"\[\d+\]")


def _sentence(words: str) -> str:
    """Return msgspec's message with the setting first; for an unknown name, list the valid ones."""
    if unknown := _UNKNOWN.fullmatch(words):
        where = _INDEX.sub("[]", unknown["where"] or "")
        names = _section(where).__struct_fields__
        near = difflib.get_close_matches(unknown["name"], names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; the settings are {', '.join(names)}"
        return f"{_dotted(where)}unknown setting {unknown['name']!r}{hint}"
    parts = _WHERE.fullmatch(words)
    assert parts is not None
    return f"{_dotted(parts['where'] or '')}{parts['what']}"


def _section(where: str) -> type[_Section]:
    """Return the section type of a path such as `gold.windows` or `stages[]`."""
    section: type[_Section] = Pipeline
    for name in filter(None, where.replace("[]", "").split(".")):
        hint = get_type_hints(section)[name]
        section = next(
            each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, _Section)
        )
    return section


def _dotted(where: str) -> str:
    return f"[{where}] " if where else ""


# -- checks across settings ---------------------------------------------------------------------------------------


def _complaints(pipeline: Pipeline) -> list[str]:
    complaints = []
    if not _NAME.fullmatch(pipeline.name):
        complaints.append(
            f"name = {pipeline.name!r}: use lower-case letters, digits and dashes, starting with a letter"
        )
    complaints += _places(pipeline)
    if not _SPAN.fullmatch(pipeline.alerts.silent):
        complaints.append(f"[alerts] silent = {pipeline.alerts.silent!r}: {_A_SPAN}")
    complaints += _OF_KIND[pipeline.kind](pipeline)
    return complaints


def _places(pipeline: Pipeline) -> list[str]:
    """Check locations: tables may be in an object store; checkpoints are read, locked and replaced as files."""
    complaints, tables = [], pipeline.tables
    if "://" in pipeline.checkpoints:
        complaints.append(
            f"checkpoints = {pipeline.checkpoints!r}: use a folder on a disk that all machines share, not a URI: "
            "the pipeline reads Spark's checkpoints itself, and its lock is beside them"
        )
    if not is_uri(pipeline.storage):
        complaints += [
            f"{name}: only for tables in an object store; storage = {pipeline.storage!r} is a folder, which holds everything"
            for name, value in {
                "checkpoints": pipeline.checkpoints,
                "[tables.store]": tables.store,
                "[tables.catalog]": tables.catalog,
            }.items()
            if value
        ]
        return complaints
    schemes = STORES[tables.format]
    if not pipeline.storage.startswith(schemes):
        complaints.append(
            f"storage = {pipeline.storage!r}: {tables.format} tables must be in a folder, or below {', '.join(schemes)}"
        )
    if pipeline.kind != "events":
        complaints.append(
            f'storage = {pipeline.storage!r}: only a pipeline of kind = "events" can have its tables in an object store'
        )
    if tables.format == "iceberg" and not tables.catalog:
        complaints.append("[tables.catalog]: Iceberg tables in an object store need a catalog (type, uri)")
    if tables.format == "delta" and tables.catalog:
        complaints.append("[tables.catalog]: Delta tables do not use a catalog")
    return complaints


def _of_wire_log(pipeline: Pipeline) -> list[str]:
    complaints = [] if pipeline.wire_log else ['kind = "wire-log" needs a section [wire_log] with log = "FILE"']
    if pipeline.wire_log and not 2 <= pipeline.wire_log.bins <= 1000:
        complaints.append(f"[wire_log] bins = {pipeline.wire_log.bins}: must be 2 to 1000")
    return complaints


def _of_events(pipeline: Pipeline) -> list[str]:
    source, silver = pipeline.source, pipeline.silver
    if source is None or silver is None:
        return ['kind = "events" needs the sections [source] and [silver]']
    complaints = [] if source.topics else ["[source] topics: name at least one"]
    complaints += _sizes(pipeline, source)
    complaints += _tables(pipeline)
    complaints += _spans(pipeline, silver)
    complaints += _columns(pipeline, silver)
    complaints += _of_stages(pipeline)
    return complaints


def _sizes(pipeline: Pipeline, source: Source) -> list[str]:
    complaints = []
    if source.max_records_per_batch < 0:
        complaints.append(
            f"[source] max_records_per_batch = {source.max_records_per_batch}: must be at least 0; 0 is no limit"
        )
    if pipeline.tables.target_file_bytes < 1:
        complaints.append(f"[tables] target_file_bytes = {pipeline.tables.target_file_bytes}: must be at least 1")
    return complaints


def _of_sdp(pipeline: Pipeline) -> list[str]:
    """Check a declarative pipeline: its flows and their names are in separate files."""
    if pipeline.source is None or not pipeline.source.topics:
        return ['kind = "sdp" needs a section [source] with topics = ["NAME"]']
    complaints = [
        f'[{name}]: a pipeline of kind = "sdp" defines its layers in definitions/'
        for name in ("silver", "gold", "stages")
        if getattr(pipeline, name) != getattr(Pipeline(pipeline.name), name)
    ]
    complaints += _sizes(pipeline, pipeline.source)
    if pipeline.tables.upsert:
        complaints.append('[tables.upsert]: Spark\'s own pipelines only append to sinks; use kind = "events" to upsert')
    if not _SPAN.fullmatch(pipeline.run.trigger):
        complaints.append(f"[run] trigger = {pipeline.run.trigger!r}: {_A_SPAN}")
    return complaints


_OF_KIND: Final = {"events": _of_events, "sdp": _of_sdp, "wire-log": _of_wire_log}


def _tables(pipeline: Pipeline) -> list[str]:
    """Check that partitioned and upserted tables exist; whether their columns exist is known only from rows."""
    tables = {"bronze", "silver", "gaps", "windows"} | {own.table for own in pipeline.stages if own.table}
    settings = pipeline.tables
    complaints = [
        f"[tables.{setting}] {name}: unknown table; the tables are {', '.join(sorted(tables))}"
        for setting, names in (("partition_by", settings.partition_by), ("upsert", settings.upsert))
        for name in names
        if name not in tables
    ]
    for name, upsert in settings.upsert.items():
        if name in ("bronze", "gaps"):
            complaints.append(f"[tables.upsert] {name}: it keeps a row for every record, and replaces none")
        if not upsert.key:
            complaints.append(f"[tables.upsert] {name}: key = [] names no column")
        if name in settings.partition_by:
            complaints.append(f"[tables.upsert] {name}: an upserted table cannot be in partition_by as well")
    return complaints


def _spans(pipeline: Pipeline, silver: Silver) -> list[str]:
    """Check durations."""
    windows = pipeline.gold.windows
    spans = {
        "[run] trigger": pipeline.run.trigger,
        "[silver.dedup] within": silver.dedup.within,
        "[silver.versions] forget_after": silver.versions.forget_after if silver.versions else "1 day",
        "[gold.windows] size": windows.size if windows else "1 day",
        "[gold.windows] late": windows.late if windows else "1 day",
        **{f"[[stages]] {own.name}: late": own.late for own in pipeline.stages if own.late},
    }
    return [f"{name} = {span!r}: {_A_SPAN}" for name, span in spans.items() if not _SPAN.fullmatch(span)]


def _columns(pipeline: Pipeline, silver: Silver) -> list[str]:
    named = [("[silver] required", name) for name in silver.required]
    named += [("[silver.dedup] by", name) for name in silver.dedup.by if not name.startswith(HEADER)]
    if silver.event_time:
        named.append(("[silver] event_time", silver.event_time))
    if pipeline.gold.windows:
        named += [("[gold.windows] by", name) for name in pipeline.gold.windows.by]
    return [f"{where}: {name!r} is not a valid column name" for where, name in named if not _COLUMN.fullmatch(name)]


def _of_stages(pipeline: Pipeline) -> list[str]:
    complaints = []
    names = list(BUILT_IN)
    for own in pipeline.stages:
        if not _NAME.fullmatch(own.name) or own.name in names:
            complaints.append(f"[[stages]] {own.name!r} is taken, or not lower-case letters, digits and dashes")
        names.append(own.name)
        if bool(own.table) == bool(own.topic):
            complaints.append(f"[[stages]] {own.name}: set exactly one of table and topic")
        if own.table and not _NAME.fullmatch(own.table.replace("_", "-")):
            complaints.append(
                f"[[stages]] {own.name}: table = {own.table!r} is not lower-case letters, digits, dashes, underscores"
            )
        if own.reads == "windows" and not pipeline.gold.windows:
            complaints.append(f"[[stages]] {own.name} reads windows, but there is no [gold.windows]")
    seen: set[tuple[str, str]] = set()
    for each in pipeline.expectations:
        if each.stage not in names:
            complaints.append(
                f"[[expectations]] {each.name}: unknown stage {each.stage!r}; the stages are {', '.join(names)}"
            )
        if not _COLUMN.fullmatch(each.name) or (each.stage, each.name) in seen:
            complaints.append(f"[[expectations]] {each.name!r} is empty, or occurs twice")
        if each.stage == "dead-letters":
            complaints.append(f"[[expectations]] {each.name}: dead letters cannot have expectations")
        seen.add((each.stage, each.name))
    return complaints
