"""`pipeline.toml`: what a pipeline is told.

Knows: names of settings, what each may be, which stand in each other's way. Refuses to know: Spark, servers, whether a file is
there.
Invariant: what is returned can be run as far as words alone can tell; what is wrong is one sentence that names the setting.
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
"""Names of stages that a pipeline of kind `events` has by itself."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_SPAN = re.compile(r"[1-9][0-9]* (millisecond|second|minute|hour|day)s?")
_A_SPAN = 'a length of time is written "10 seconds", with milliseconds, seconds, minutes, hours or days'
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HEADER: Final = "header:"


def refusal(sentence: str) -> BrokerError:
    """A pipeline that cannot be run as it is written."""
    return BrokerError(Reason.INVALID_SETTING, sentence)


def is_uri(place: str) -> bool:
    return "://" in place


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: what it does not name, nobody may write."""


class Source(_Section, frozen=True):
    """Where records come from."""

    topics: tuple[str, ...]
    servers: str = f"127.0.0.1:{KAFKA.port}"
    starting: Literal["earliest", "latest"] = "earliest"
    group: str = ""
    max_records_per_batch: int = 0


class Run(_Section, frozen=True):
    """How Spark runs it."""

    trigger: str = "10 seconds"
    master: str = "local[*]"
    conf: dict[str, str] = {}


class Upsert(_Section, frozen=True):
    """A table with one row for each key."""

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
    """Properties of the object store that `storage` names, as pyiceberg calls them."""
    catalog: dict[str, str] = {}
    """Of Iceberg tables in an object store: properties of the catalog, as pyiceberg calls them."""


class Dedup(_Section, frozen=True):
    """What makes two records the same; where one of them is not there, a record's position."""

    by: tuple[str, ...] = ()
    within: str = "1 hour"


class Versions(_Section, frozen=True):
    """An event-sourced topic: each aggregate's versions count up by one."""

    aggregate: str
    version: str
    first: int | None = None
    forget_after: str = "7 days"


class Silver(_Section, frozen=True):
    """Records become columns."""

    schema: str
    required: tuple[str, ...] = ()
    event_time: str = ""
    transforms: tuple[str, ...] = ()
    topic: str = ""
    dedup: Dedup = Dedup()
    versions: Versions | None = None


class DeadLetters(_Section, frozen=True):
    """Where records go that cannot be read."""

    topic: str = ""


class Windows(_Section, frozen=True):
    """Counts, and latencies if there are any, per window of event time."""

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
    """What is made of clean events."""

    windows: Windows | None = None
    state: State | None = None


class Expectation(_Section, frozen=True):
    """A check on every row that a stage writes."""

    stage: str
    name: str
    check: str
    on_violation: Literal["keep", "drop", "fail"] = "keep"


class OwnStage(_Section, frozen=True):
    """A stage of one's own: SQL or Python over a layer."""

    name: str
    transform: str
    reads: Literal["silver", "windows"] = "silver"
    table: str = ""
    topic: str = ""
    late: str = ""
    time: str = "_time"


class WireLog(_Section, frozen=True):
    """The log of a node's wires, as `braid serve --wire-log FILE --wire-format json` writes it."""

    log: str
    page: str = "wire-log.html"
    title: str = "Wire log"
    bins: int = 60


class Report(_Section, frozen=True):
    """Where progress is reported."""

    admin: str = LOCAL_ADMIN_URL


class Alerts(_Section, frozen=True):
    """What `status --check` minds; a stage that has read everything is never silent."""

    lag_records: int = 1_000_000
    silent: str = "1 hour"
    dead_letters: int = 1_000_000


class Pipeline(_Section, frozen=True):
    """A whole file."""

    name: str
    kind: Literal["events", "sdp", "wire-log"] = "events"
    storage: str = "storage"
    checkpoints: str = ""
    """Where storage is a URI: the folder of Spark's checkpoints, and of what else the pipeline remembers."""
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
    """The pipeline of a project folder."""
    path = folder / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise refusal(f"{path} is not there; `braid pipeline init {folder}` makes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"{path} cannot be read: {error}") from error
    return parse(text)


def parse(text: str) -> Pipeline:
    """The pipeline that a text describes."""
    try:
        found = msgspec.convert(tomllib.loads(text), Pipeline)
    except tomllib.TOMLDecodeError as error:
        raise refusal(f"{FILE_NAME} is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        sentence = _sentence(str(error))
        if sentence.startswith("[tables.format]") and "'parquet'" in sentence:
            sentence = f"[tables] format = 'parquet': {NO_PARQUET}"
        raise refusal(f"{FILE_NAME}: {sentence}") from error
    for complaint in _complaints(found):
        raise refusal(f"{FILE_NAME}: {complaint}")
    return found


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<where>[^`]*)`)?")
_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?", re.DOTALL)
_INDEX = re.compile(r"\[\d+\]")


def _sentence(words: str) -> str:
    """msgspec's words, with the setting first; of a name that does not exist, those that do."""
    if unknown := _UNKNOWN.fullmatch(words):
        where = _INDEX.sub("[]", unknown["where"] or "")
        names = _section(where).__struct_fields__
        near = difflib.get_close_matches(unknown["name"], names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
        return f"{_dotted(where)}there is no setting {unknown['name']!r}{hint}"
    parts = _WHERE.fullmatch(words)
    assert parts is not None
    return f"{_dotted(parts['where'] or '')}{parts['what']}"


def _section(where: str) -> type[_Section]:
    """The section of a place such as `gold.windows` or `stages[]`."""
    found: type[_Section] = Pipeline
    for name in filter(None, where.replace("[]", "").split(".")):
        hint = get_type_hints(found)[name]
        found = next(each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, _Section))
    return found


def _dotted(where: str) -> str:
    return f"[{where}] " if where else ""


# -- what single settings cannot know ------------------------------------------------------------------------------


def _complaints(pipeline: Pipeline) -> list[str]:
    found = []
    if not _NAME.fullmatch(pipeline.name):
        found.append(f"name = {pipeline.name!r}: a name is small letters, digits and dashes, and begins with a letter")
    found += _places(pipeline)
    if not _SPAN.fullmatch(pipeline.alerts.silent):
        found.append(f"[alerts] silent = {pipeline.alerts.silent!r}: {_A_SPAN}")
    found += _OF_KIND[pipeline.kind](pipeline)
    return found


def _places(pipeline: Pipeline) -> list[str]:
    """Tables may be in a store; checkpoints are read, locked and replaced as files."""
    found, tables = [], pipeline.tables
    if "://" in pipeline.checkpoints:
        found.append(
            f"checkpoints = {pipeline.checkpoints!r}: a folder on a disk that all machines share, not a URI: the pipeline reads "
            "Spark's checkpoints itself, and its lock is beside them"
        )
    if not is_uri(pipeline.storage):
        found += [
            f"{name}: where tables are in an object store; storage = {pipeline.storage!r} is a folder, which has everything"
            for name, value in {
                "checkpoints": pipeline.checkpoints,
                "[tables.store]": tables.store,
                "[tables.catalog]": tables.catalog,
            }.items()
            if value
        ]
        return found
    schemes = STORES[tables.format]
    if not pipeline.storage.startswith(schemes):
        found.append(
            f"storage = {pipeline.storage!r}: {tables.format} tables are in a folder, or below {', '.join(schemes)}"
        )
    if pipeline.kind != "events":
        found.append(
            f'storage = {pipeline.storage!r}: only a pipeline of kind = "events" has its tables in an object store'
        )
    if tables.format == "iceberg" and not tables.catalog:
        found.append("[tables.catalog]: Iceberg tables in an object store are found by a catalog (type, uri)")
    if tables.format == "delta" and tables.catalog:
        found.append("[tables.catalog]: Delta tables have none")
    return found


def _of_wire_log(pipeline: Pipeline) -> list[str]:
    found = [] if pipeline.wire_log else ['kind = "wire-log" needs a section [wire_log] with log = "FILE"']
    if pipeline.wire_log and not 2 <= pipeline.wire_log.bins <= 1000:
        found.append(f"[wire_log] bins = {pipeline.wire_log.bins}: from 2 to 1000")
    return found


def _of_events(pipeline: Pipeline) -> list[str]:
    source, silver = pipeline.source, pipeline.silver
    if source is None or silver is None:
        return ['kind = "events" needs the sections [source] and [silver]']
    found = [] if source.topics else ["[source] topics: name at least one"]
    found += _sizes(pipeline, source)
    found += _tables(pipeline)
    found += _spans(pipeline, silver)
    found += _columns(pipeline, silver)
    found += _of_stages(pipeline)
    return found


def _sizes(pipeline: Pipeline, source: Source) -> list[str]:
    found = []
    if source.max_records_per_batch < 0:
        found.append(f"[source] max_records_per_batch = {source.max_records_per_batch}: 0 is no limit, less is nothing")
    if pipeline.tables.target_file_bytes < 1:
        found.append(f"[tables] target_file_bytes = {pipeline.tables.target_file_bytes}: at least 1")
    return found


def _of_sdp(pipeline: Pipeline) -> list[str]:
    """Its flows are in files of their own, and so is what their names are."""
    if pipeline.source is None or not pipeline.source.topics:
        return ['kind = "sdp" needs a section [source] with topics = ["NAME"]']
    found = [
        f'[{name}]: a pipeline of kind = "sdp" has its layers in definitions/'
        for name in ("silver", "gold", "stages")
        if getattr(pipeline, name) != getattr(Pipeline(pipeline.name), name)
    ]
    found += _sizes(pipeline, pipeline.source)
    if pipeline.tables.upsert:
        found.append('[tables.upsert]: Spark\'s own pipelines only append to sinks; kind = "events" upserts')
    if not _SPAN.fullmatch(pipeline.run.trigger):
        found.append(f"[run] trigger = {pipeline.run.trigger!r}: {_A_SPAN}")
    return found


_OF_KIND: Final = {"events": _of_events, "sdp": _of_sdp, "wire-log": _of_wire_log}


def _tables(pipeline: Pipeline) -> list[str]:
    """Tables that are partitioned or upserted are tables that there are; whether a column is there, its rows say."""
    tables = {"bronze", "silver", "gaps", "windows"} | {own.table for own in pipeline.stages if own.table}
    settings = pipeline.tables
    found = [
        f"[tables.{setting}] {name}: there is no such table; there are {', '.join(sorted(tables))}"
        for setting, names in (("partition_by", settings.partition_by), ("upsert", settings.upsert))
        for name in names
        if name not in tables
    ]
    for name, wanted in settings.upsert.items():
        if name in ("bronze", "gaps"):
            found.append(f"[tables.upsert] {name}: it has a row for everything that came, and none is replaced")
        if not wanted.key:
            found.append(f"[tables.upsert] {name}: key = [] names no column")
        if name in settings.partition_by:
            found.append(f"[tables.upsert] {name}: a table that is upserted cannot be in partition_by as well")
    return found


def _spans(pipeline: Pipeline, silver: Silver) -> list[str]:
    """Lengths of time are written alike everywhere."""
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
    return [f"{where}: {name!r} is no name of a column" for where, name in named if not _COLUMN.fullmatch(name)]


def _of_stages(pipeline: Pipeline) -> list[str]:
    found = []
    names = list(BUILT_IN)
    for own in pipeline.stages:
        if not _NAME.fullmatch(own.name) or own.name in names:
            found.append(f"[[stages]] {own.name!r} is taken, or is not small letters, digits and dashes")
        names.append(own.name)
        if bool(own.table) == bool(own.topic):
            found.append(f"[[stages]] {own.name}: it writes one thing: table = or topic =")
        if own.table and not _NAME.fullmatch(own.table.replace("_", "-")):
            found.append(
                f"[[stages]] {own.name}: table = {own.table!r} is not small letters, digits, dashes, underscores"
            )
        if own.reads == "windows" and not pipeline.gold.windows:
            found.append(f"[[stages]] {own.name} reads windows, and there is no [gold.windows]")
    seen: set[tuple[str, str]] = set()
    for each in pipeline.expectations:
        if each.stage not in names:
            found.append(
                f"[[expectations]] {each.name}: there is no stage {each.stage!r}; there are {', '.join(names)}"
            )
        if not _COLUMN.fullmatch(each.name) or (each.stage, each.name) in seen:
            found.append(f"[[expectations]] {each.name!r} is no name, or is there twice")
        if each.stage == "dead-letters":
            found.append(f"[[expectations]] {each.name}: nothing is expected of dead letters")
        seen.add((each.stage, each.name))
    return found
