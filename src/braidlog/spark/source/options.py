"""The options of the topic source, and the query that they describe.

Knows: names, defaults, which options exclude each other. Refuses to know: servers, Spark's classes.
Invariant: what comes out of `query_of` can be run as it is; whatever is wrong with the options was said.
"""

import re
from collections.abc import Mapping

import msgspec

from braidlog.client.schemes import parse_url
from braidlog.spark.options import (
    Chosen,
    FormatOptions,
    Kind,
    Option,
    OptionError,
    duration_ms,
    flag,
    json_object,
    names,
    one_of,
    servers,
    size,
    text,
    whole,
)
from braidlog.spark.source.planning import Cuts
from braidlog.spark.source.positions import EARLIEST, LATEST, WORDS, Offsets, Place, assigned, from_json

_OFFSETS_FORM = 'earliest, latest, or JSON such as {"topic":{"0":23,"1":-2}} (-2: earliest, -1: latest)'
_TIMES_FORM = 'JSON such as {"topic":{"0":1700000000000}}, milliseconds since 1970'


def _offsets(value: str) -> int | Offsets:
    word = WORDS.get(value.strip().lower())
    if word is not None:
        return word
    found: Offsets = json_object("", lambda data: from_json(data, EARLIEST)).parse(value)
    return found


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(str(error)) from None
    return value


_offsets_kind = Kind(_OFFSETS_FORM, _offsets)
_times_kind = json_object(_TIMES_FORM, from_json)

READ = FormatOptions(
    "braidlog",
    "read",
    (
        Option(
            "servers",
            servers,
            None,
            "The node to read from. One of `servers` and `path` is set.",
            aliases=("kafka.bootstrap.servers",),
        ),
        Option("path", text, None, "A data folder to read without a server; it may be in use by one."),
        Option(
            "subscribe",
            names,
            None,
            "Topics to read. One of `subscribe`, `subscribePattern` and `assign` is set.",
            ("topic",),
        ),
        Option(
            "subscribePattern",
            Kind("a regular expression that a topic's whole name matches", _pattern),
            None,
            "Topics to read.",
        ),
        Option("assign", json_object('JSON such as {"topic":[0,1]}', assigned), None, "Partitions to read."),
        Option(
            "startingOffsets",
            _offsets_kind,
            None,
            "Where a new query begins: `latest` for a stream, `earliest` for a batch unless set. A stream that was begun goes on "
            "where its checkpoint says.",
        ),
        Option(
            "startingTimestamp",
            whole(0),
            None,
            "Begin with the first record at or after this time, in milliseconds since 1970.",
        ),
        Option("startingOffsetsByTimestamp", _times_kind, None, "The same for each partition."),
        Option(
            "startingOffsetsByTimestampStrategy",
            one_of("error", "latest"),
            "error",
            "What if a partition has no record at or after the time it begins with.",
        ),
        Option("endingOffsets", _offsets_kind, "latest", "Where a batch ends; of a stream it is refused."),
        Option("endingTimestamp", whole(0), None, "End before the first record at or after this time; a batch only."),
        Option("endingOffsetsByTimestamp", _times_kind, None, "The same for each partition."),
        Option(
            "maxOffsetsPerTrigger", whole(), None, "How many offsets a trigger takes at most, shared out by backlog."
        ),
        Option(
            "maxBytesPerTrigger",
            size,
            None,
            "About how many bytes of the log a trigger takes at most, shared out by backlog.",
        ),
        Option(
            "minOffsetsPerTrigger", whole(), None, "Wait until so many offsets are there, or `maxTriggerDelay` is over."
        ),
        Option("maxTriggerDelay", duration_ms, "15m", "How long `minOffsetsPerTrigger` is waited for."),
        Option("minPartitions", whole(1, 1_000_000), None, "Cut what is read into about so many tasks at least."),
        Option("maxRecordsPerPartition", whole(), None, "Cut what is read into tasks of so many offsets at most."),
        Option("targetPartitionBytes", size, "64m", "Cut what is read into tasks of about so many bytes of the log."),
        Option(
            "onDataLoss",
            one_of("fail", "skip", "report"),
            "fail",
            "What if records were deleted before they were read: `fail` names the exact ranges; `skip` logs them and goes on; "
            "`report` appends each range once to `lossTopic` and goes on. Holes of compaction or aborted transactions are none.",
        ),
        Option(
            "failOnDataLoss",
            flag,
            None,
            "As Spark's Kafka connector has it: `true` is `onDataLoss=fail`, `false` is `skip`.",
        ),
        Option("lossTopic", text, None, "Where `onDataLoss=report` writes to; it is created if it is not there."),
        Option(
            "groupId",
            text,
            None,
            "Commit what was processed to this group, so that the query's lag is seen like any consumer's.",
            aliases=("kafka.group.id",),
        ),
        Option(
            "isolation",
            one_of("read_committed", "read_uncommitted"),
            None,
            "`read_committed` unless set: records of aborted transactions never happened, and a table should not hold them.",
            aliases=("kafka.isolation.level",),
        ),
        Option("includeHeaders", flag, "false", "A column `headers` too."),
        Option(
            "valueFormat",
            one_of("binary", "string", "json"),
            "binary",
            "What the values are; the column `value` has that type.",
        ),
        Option(
            "valueSchema",
            text,
            None,
            "The fields of JSON values as Spark's DDL, such as `id BIGINT, at TIMESTAMP`: the column `value` is a struct.",
        ),
        Option(
            "badRecords",
            one_of("null", "fail"),
            "null",
            "A value that is not of its format: `null`, with the reason in the column `_error`; or the query fails.",
        ),
        Option(
            "fetchBytes",
            size,
            "2m",
            "How much of the log a task asks for at a time; a few such pieces are kept ahead.",
            ("kafka.fetch.max.bytes",),
        ),
    ),
)

_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_FETCH_BYTES_MAX = 64 * 1024 * 1024


class Selection(msgspec.Struct, frozen=True):
    """Which partitions: one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    places: tuple[Place, ...] = ()

    def has(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(topic == named for named, _ in self.places)


class Bound(msgspec.Struct, frozen=True):
    """Where to begin or to end. `option` is the name that an error gives it."""

    option: str
    everywhere: int | None = None
    """EARLIEST or LATEST."""
    offsets: dict[Place, int] | None = None
    time_ms: int | None = None
    times_ms: dict[Place, int] | None = None


class Admission(msgspec.Struct, frozen=True):
    """How much a trigger takes."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    delay_ms: int = 0


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read, and how. It travels to executors as it is."""

    url: str | None
    path: str | None
    selection: Selection
    start: Bound
    end: Bound
    timeless: str
    """What if no record is as young as the time to begin with: error, latest."""
    admission: Admission
    cuts: Cuts
    on_loss: str
    loss_topic: str | None
    group: str | None
    committed_only: bool
    headers: bool
    value_format: str
    value_schema: str | None
    bad_records: str
    fetch_bytes: int


def query_of(options: Mapping[str, str], *, streaming: bool | None) -> Query:
    """The query; `OptionError` says what is wrong. `streaming` None: it is not known yet, and only the columns are asked for."""
    chosen = READ.read(options)
    _refuse_strangers(chosen, streaming=streaming)
    on_loss = _on_loss(chosen)
    source = chosen.exactly_one("servers", "path")
    value_format = chosen["valueFormat"]
    if (value_format == "json") != ("valueSchema" in chosen.given):
        raise OptionError("valueSchema", None, "it is set with valueFormat = json, and only then")
    if source == "path" and "groupId" in chosen.given:
        raise OptionError("groupId", None, "a folder has no groups to commit to: they are the server's")
    if source == "path" and on_loss == "report":
        raise OptionError("onDataLoss", "report", "a folder is only read: use fail or skip, or set servers")
    return Query(
        url=_kafka_url(chosen) if source == "servers" else None,
        path=chosen["path"] if source == "path" else None,
        selection=_selection(chosen),
        start=_bound(chosen, "starting", LATEST if streaming else EARLIEST, of_batch=streaming is False),
        end=_bound(chosen, "ending", LATEST, of_batch=True),
        timeless=chosen["startingOffsetsByTimestampStrategy"],
        admission=Admission(
            chosen["maxOffsetsPerTrigger"],
            chosen["maxBytesPerTrigger"],
            chosen["minOffsetsPerTrigger"],
            chosen["maxTriggerDelay"],
        ),
        cuts=Cuts(chosen["targetPartitionBytes"], chosen["minPartitions"], chosen["maxRecordsPerPartition"]),
        on_loss=on_loss,
        loss_topic=chosen["lossTopic"],
        group=chosen["groupId"],
        committed_only=_isolation(chosen) == "read_committed",
        headers=chosen["includeHeaders"],
        value_format=value_format,
        value_schema=chosen["valueSchema"],
        bad_records=chosen["badRecords"],
        fetch_bytes=min(chosen["fetchBytes"], _FETCH_BYTES_MAX),
    )


def _refuse_strangers(chosen: Chosen, *, streaming: bool | None) -> None:
    for name in () if streaming is None else _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name in chosen.given:
            raise OptionError(name, None, f"it is for {'batches' if streaming else 'streams'}, and this is none")
    if "maxTriggerDelay" in chosen.given and "minOffsetsPerTrigger" not in chosen.given:
        raise OptionError("maxTriggerDelay", None, "it limits the wait for minOffsetsPerTrigger, which is not set")
    low, high = chosen["minOffsetsPerTrigger"], chosen["maxOffsetsPerTrigger"]
    if low is not None and high is not None and low > high:
        raise OptionError("minOffsetsPerTrigger", str(low), f"it is not over maxOffsetsPerTrigger = {high}")


def _on_loss(chosen: Chosen) -> str:
    legacy = chosen["failOnDataLoss"]
    found: str = chosen["onDataLoss"]
    if legacy is not None:
        meant = "fail" if legacy else "skip"
        if "onDataLoss" in chosen.given and found != meant:
            raise OptionError("failOnDataLoss", str(legacy).lower(), f"onDataLoss says {found}: set one of them")
        found = meant
    if (found == "report") != ("lossTopic" in chosen.given):
        raise OptionError("lossTopic", None, "it is set with onDataLoss = report, and only then")
    return found


def _selection(chosen: Chosen) -> Selection:
    match chosen.exactly_one("subscribe", "subscribePattern", "assign"):
        case "subscribe":
            return Selection(topics=chosen["subscribe"])
        case "subscribePattern":
            return Selection(pattern=chosen["subscribePattern"])
        case _:
            return Selection(places=chosen["assign"])


_EMPTY = {
    "startingOffsets": ("latest", "a batch that begins at the end reads nothing: it takes earliest or offsets"),
    "endingOffsets": ("earliest", "a batch that ends at the beginning reads nothing: it takes latest or offsets"),
}


def _bound(chosen: Chosen, edge: str, default: int, *, of_batch: bool) -> Bound:
    """Where to begin, or to end. The Kafka connector takes the first of the options that is set and drops the others; here two of
    them are a mistake."""
    offsets = f"{edge}Offsets"
    name = chosen.at_most_one(f"{edge}Timestamp", f"{offsets}ByTimestamp", offsets)
    if name == f"{edge}Timestamp":
        return Bound(name, time_ms=chosen[name])
    if name == f"{offsets}ByTimestamp":
        return Bound(name, times_ms=chosen[name])
    said = default if chosen[offsets] is None else chosen[offsets]
    word, why = _EMPTY[offsets]
    if of_batch and WORDS[word] in (said.values() if isinstance(said, dict) else (said,)):
        raise OptionError(offsets, word, why)
    return Bound(offsets, offsets=said) if isinstance(said, dict) else Bound(offsets, everywhere=said)


def _kafka_url(chosen: Chosen) -> str:
    url: str = chosen["servers"]
    target = parse_url(url)
    if target.scheme != "kafka":
        raise OptionError(
            "servers",
            f"{target.scheme}://…",
            "whole batches come through the Kafka door only; it takes host:port of that, or kafka://user:token@host:port",
        )
    return url


def _isolation(chosen: Chosen) -> str:
    """The option, else what the URL says, else what a table should hold."""
    said: str | None = chosen["isolation"]
    if said is None and chosen["servers"] is not None:
        said = parse_url(chosen["servers"]).options.get("isolation")
    return said or "read_committed"
