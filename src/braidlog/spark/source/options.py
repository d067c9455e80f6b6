"""The options of the topic source, and the query that they describe.

Knows: names, defaults, which options exclude each other. Refuses to know: servers, Spark's classes.
Invariant: a `Query` can be run as it is; whatever is wrong with the options was said.
"""

import re
from collections.abc import Mapping

import msgspec

from braidlog.client.schemes import parse_url
from braidlog.spark import options as o
from braidlog.spark.kafka_options import understood
from braidlog.spark.options import OptionError, Options, warn_once
from braidlog.spark.source.planning import Cuts
from braidlog.spark.source.positions import EARLIEST, LATEST, WORDS, Offsets, Place, assigned, from_json

_OFFSETS_FORM = 'earliest, latest, or JSON such as {"topic":{"0":23,"1":-2}} (-2: earliest, -1: latest)'
_TIMES_FORM = 'JSON such as {"topic":{"0":1700000000000}}, milliseconds since 1970'


def _offsets(value: str) -> int | Offsets:
    word = WORDS.get(value.strip().lower())
    if word is not None:
        return word
    found: Offsets = o.json_object("", lambda data: from_json(data, EARLIEST)).parse(value)
    return found


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(str(error)) from None
    return value


def _version(value: str) -> str:
    word = value.strip().lower()
    if word != "latest" and not (word.isascii() and word.isdecimal() and int(word) > 0):
        raise ValueError
    return word


_offsets_kind = o.Kind(_OFFSETS_FORM, _offsets)
_times_kind = o.json_object(_TIMES_FORM, from_json)

_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "fromOffset", "toOffset")
_WITH_SCHEMA = ("json", "avro", "protobuf")
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


_EMPTY = {
    "startingOffsets": ("latest", "a batch that begins at the end reads nothing: it takes earliest or offsets"),
    "endingOffsets": ("earliest", "a batch that ends at the beginning reads nothing: it takes latest or offsets"),
}


class Query(Options, format="braidlog", direction="read"):
    """What is to be read, and how. It travels to executors as it is."""

    servers: str | None = o.option(
        o.servers, None, "The node to read from. One of `servers` and `path` is set.", "kafka.bootstrap.servers"
    )
    path: str | None = o.option(o.text, None, "A data folder to read without a server; it may be in use by one.")
    subscribe: tuple[str, ...] | None = o.option(
        o.names, None, "Topics to read. One of `subscribe`, `subscribePattern` and `assign` is set.", "topic"
    )
    subscribe_pattern: str | None = o.option(
        o.Kind("a regular expression that a topic's whole name matches", _pattern), None, "Topics to read."
    )
    assign: tuple[Place, ...] | None = o.option(
        o.json_object('JSON such as {"topic":[0,1]}', assigned), None, "Partitions to read."
    )
    starting_offsets: int | Offsets | None = o.option(
        _offsets_kind,
        None,
        "Where a new query begins: `latest` for a stream, `earliest` for a batch unless set. A stream that was begun goes on "
        "where its checkpoint says.",
    )
    starting_timestamp: int | None = o.option(
        o.whole(0), None, "Begin with the first record at or after this time, in milliseconds since 1970."
    )
    starting_offsets_by_timestamp: Offsets | None = o.option(_times_kind, None, "The same for each partition.")
    starting_offsets_by_timestamp_strategy: str = o.option(
        o.one_of("error", "latest"), "error", "What if a partition has no record at or after the time it begins with."
    )
    ending_offsets: int | Offsets = o.option(_offsets_kind, "latest", "Where a batch ends; of a stream it is refused.")
    ending_timestamp: int | None = o.option(
        o.whole(0), None, "End before the first record at or after this time; a batch only."
    )
    ending_offsets_by_timestamp: Offsets | None = o.option(_times_kind, None, "The same for each partition.")
    from_offset: int | None = o.option(
        o.whole(0), None, "Of every partition only offsets from this on; a batch only. What is not there is not missed."
    )
    to_offset: int | None = o.option(o.whole(0), None, "Of every partition only offsets below this; a batch only.")
    max_offsets_per_trigger: int | None = o.option(
        o.whole(), None, "How many offsets a trigger takes at most, shared out by backlog."
    )
    max_bytes_per_trigger: int | None = o.option(
        o.size, None, "About how many bytes of the log a trigger takes at most, shared out by backlog."
    )
    min_offsets_per_trigger: int | None = o.option(
        o.whole(), None, "Wait until so many offsets are there, or `maxTriggerDelay` is over."
    )
    max_trigger_delay: int = o.option(o.duration_ms, "15m", "How long `minOffsetsPerTrigger` is waited for.")
    min_partitions: int | None = o.option(
        o.whole(1, 1_000_000), None, "Cut what is read into about so many tasks at least."
    )
    parallel_tasks: int | None = o.option(
        o.whole(1, 1_000_000),
        None,
        "How many tasks run at a time; `topic(…)` tells it where Spark runs on one machine. A query without values is cut into "
        "so many rather than into more, unless one would be 1 GB or more.",
    )
    max_records_per_partition: int | None = o.option(
        o.whole(), None, "Cut what is read into tasks of so many offsets at most."
    )
    target_partition_bytes: int = o.option(
        o.size,
        "64m",
        "Cut what is read into tasks of about so many bytes of the log; unless it is set, of four times as many where no column "
        "is made of values.",
    )
    on_data_loss: str = o.option(
        o.one_of("fail", "skip", "report"),
        "fail",
        "What if records were deleted before they were read: `fail` names the exact ranges; `skip` logs them and goes on; "
        "`report` appends each range once to `lossTopic` and goes on. Holes of compaction or aborted transactions are none.",
    )
    fail_on_data_loss: bool | None = o.option(
        o.flag, None, "As Spark's Kafka connector has it: `true` is `onDataLoss=fail`, `false` is `skip`."
    )
    loss_topic: str | None = o.option(
        o.text, None, "Where `onDataLoss=report` writes to; it is created if it is not there."
    )
    group_id: str | None = o.option(
        o.text,
        None,
        "Commit what was processed to this group, so that the query's lag is seen like any consumer's.",
        "kafka.group.id",
    )
    isolation: str | None = o.option(
        o.one_of("read_committed", "read_uncommitted"),
        None,
        "`read_committed` unless set: records of aborted transactions never happened, and a table should not hold them.",
        "kafka.isolation.level",
    )
    include_headers: bool = o.option(o.flag, "false", "A column `headers` too.")
    value_format: str = o.option(
        o.one_of("binary", "string", "json", "avro", "protobuf"),
        "binary",
        "What the values are; the column `value` has that type.",
    )
    value_schema: str | None = o.option(
        o.text,
        None,
        "The fields of JSON values as Spark's DDL, such as `id BIGINT, at TIMESTAMP`: the column `value` is a struct.",
    )
    schema_registry: str | None = o.option(
        o.registry,
        None,
        "Values begin with the id of a schema of this registry. They are read as the schema of `valueSubject` has them: what "
        "was written with another one is resolved as Avro and Protobuf do it.",
    )
    value_subject: str | None = o.option(
        o.text, None, "Whose schema the values are read with: `<topic>-value` unless set."
    )
    value_version: str = o.option(
        o.Kind("a version's number, or latest", _version),
        "latest",
        "Which version of the subject. `latest` is the newest when the frame is made, or the stream started.",
    )
    value_schema_file: str | None = o.option(
        o.text,
        None,
        "A file on the driver with the schema that values are read with: Avro's or JSON Schema's JSON, or a .proto file. "
        "Without `schemaRegistry` values begin with no id, and were written with it too.",
    )
    value_message: str | None = o.option(
        o.text, None, "Which message of a Protobuf schema the values are: the first of its file unless set."
    )
    bad_records: str = o.option(
        o.one_of("field", "null", "fail"),
        "field",
        "A value that is not of its format is null, and the column `_error` says why. Of a JSON object with a field of another "
        "type, `field` makes that field null, `null` all of them. `fail`: the query fails and names the record.",
    )
    fetch_bytes: int = o.option(
        o.size,
        "2m",
        "How much of the log a task asks for at a time; a few such pieces are kept ahead.",
        "kafka.fetch.max.bytes",
    )

    def __init__(self, options: Mapping[str, str], *, streaming: bool | None) -> None:
        """`OptionError` says what is wrong. `streaming` None: it is not known yet, and only the columns are asked for."""
        meant, idle = understood(options)
        super().__init__(meant)
        for name in idle:
            warn_once(f"option {name} tunes Kafka's Java client and changes nothing here")
        given = self.chosen.given
        self._refuse_unknown(streaming=streaming)
        self.on_loss = self._on_loss()
        """What is done about records that were deleted before they were read: fail, skip, report."""
        source = self.chosen.exactly_one("servers", "path")
        self._check_schema_options()
        if source == "path" and "groupId" in given:
            raise OptionError("groupId", None, "a folder has no groups to commit to: they are the server's")
        if source == "path" and self.on_loss == "report":
            raise OptionError("onDataLoss", "report", "a folder is only read: use fail or skip, or set servers")
        if self.servers is not None and (scheme := parse_url(self.servers).scheme) != "kafka":
            only = "whole batches come through the Kafka door only; it takes host:port of that, or kafka://user:token@host:port"
            raise OptionError("servers", f"{scheme}://…", only)
        self.chosen.exactly_one("subscribe", "subscribePattern", "assign")
        self.selection = Selection(self.subscribe or (), self.subscribe_pattern, self.assign or ())
        self.start = self._bound("starting", LATEST if streaming else EARLIEST, of_batch=streaming is False)
        self.end = self._bound("ending", LATEST, of_batch=True)
        self.cuts = Cuts(self.target_partition_bytes, self.min_partitions, self.max_records_per_partition)
        self.fetch_bytes = min(self.fetch_bytes, _FETCH_BYTES_MAX)
        # The option, else what the URL says, else what a table should hold.
        by_url = None if self.servers is None else parse_url(self.servers).options.get("isolation")
        self.committed_only = (self.isolation or by_url or "read_committed") == "read_committed"

    def _check_schema_options(self) -> None:
        """Values of a format with schemas have one, and others none."""
        given = self.chosen.given
        sources = given & {"valueSchema", "valueSchemaFile", "schemaRegistry"}
        if self.value_format not in _WITH_SCHEMA:
            for name in (*sources, *(given & {"valueSubject", "valueVersion", "valueMessage"})):
                raise OptionError(name, None, f"it is set with valueFormat = {', '.join(_WITH_SCHEMA)}, and only then")
            return
        if not sources:
            said = "valueSchema (JSON alone), schemaRegistry or valueSchemaFile must be set"
            raise OptionError("valueFormat", self.value_format, said)
        if "valueSchema" in given and (self.value_format != "json" or len(sources) > 1):
            raise OptionError("valueSchema", None, "it says what JSON values are, and no other schema is set then")
        for name in given & {"valueSubject", "valueVersion"}:
            if "schemaRegistry" not in given or "valueSchemaFile" in given:
                raise OptionError(name, None, "it is set with schemaRegistry, and without valueSchemaFile")
        if "valueMessage" in given and self.value_format != "protobuf":
            raise OptionError("valueMessage", None, "it is set with valueFormat = protobuf")

    def _refuse_unknown(self, *, streaming: bool | None) -> None:
        for name in () if streaming is None else _BATCH_ONLY if streaming else _STREAM_ONLY:
            if name in self.chosen.given:
                raise OptionError(name, None, f"it is for {'batches' if streaming else 'streams'}, and this is none")
        if "maxTriggerDelay" in self.chosen.given and "minOffsetsPerTrigger" not in self.chosen.given:
            raise OptionError("maxTriggerDelay", None, "it limits the wait for minOffsetsPerTrigger, which is not set")
        low, high = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if low is not None and high is not None and low > high:
            raise OptionError("minOffsetsPerTrigger", str(low), f"it is not over maxOffsetsPerTrigger = {high}")

    def _on_loss(self) -> str:
        legacy = self.fail_on_data_loss
        found = self.on_data_loss
        if legacy is not None:
            meant = "fail" if legacy else "skip"
            if "onDataLoss" in self.chosen.given and found != meant:
                raise OptionError("failOnDataLoss", str(legacy).lower(), f"onDataLoss says {found}: set one of them")
            found = meant
        if (found == "report") != ("lossTopic" in self.chosen.given):
            raise OptionError("lossTopic", None, "it is set with onDataLoss = report, and only then")
        return found

    def _bound(self, edge: str, default: int, *, of_batch: bool) -> Bound:
        """Where to begin, or to end. The Kafka connector takes the first of the options that is set and drops the others; here
        two of them are a mistake."""
        chosen = self.chosen
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
