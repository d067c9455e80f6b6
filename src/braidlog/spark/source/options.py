"""The options of the topic source, and the query that they describe.

A `Query` is validated and can be run. Does not handle: servers, Spark's classes.
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
    offsets: Offsets = o.json_object("", lambda data: from_json(data, EARLIEST)).parse(value)
    return offsets


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
    """The selected partitions: one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    places: tuple[Place, ...] = ()

    def has(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(topic == named for named, _ in self.places)


class Bound(msgspec.Struct, frozen=True):
    """Where to begin or to end. `option` is its name in errors."""

    option: str
    everywhere: int | None = None
    """EARLIEST or LATEST."""
    offsets: dict[Place, int] | None = None
    time_ms: int | None = None
    times_ms: dict[Place, int] | None = None


_EMPTY = {
    "startingOffsets": ("latest", "a batch that begins at the end reads nothing: use earliest or offsets"),
    "endingOffsets": ("earliest", "a batch that ends at the beginning reads nothing: use latest or offsets"),
}


class Query(Options, format="braidlog", direction="read"):
    """What to read, and how. It is sent to executors."""

    servers: str | None = o.option(
        o.servers, None, "The node to read from. Set one of `servers` and `path`.", "kafka.bootstrap.servers"
    )
    path: str | None = o.option(o.text, None, "A data folder to read without a server; a server may be using it.")
    subscribe: tuple[str, ...] | None = o.option(
        o.names, None, "Topics to read. Set one of `subscribe`, `subscribePattern` and `assign`.", "topic"
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
        "Where a new query begins. Default: `latest` for a stream, `earliest` for a batch. A restarted stream resumes "
        "from its checkpoint.",
    )
    starting_timestamp: int | None = o.option(
        o.whole(0), None, "Begin with the first record at or after this time, in milliseconds since 1970."
    )
    starting_offsets_by_timestamp: Offsets | None = o.option(_times_kind, None, "The start time of each partition.")
    starting_offsets_by_timestamp_strategy: str = o.option(
        o.one_of("error", "latest"), "error", "What to do if a partition has no record at or after its start time."
    )
    ending_offsets: int | Offsets = o.option(_offsets_kind, "latest", "Where a batch ends; refused for streams.")
    ending_timestamp: int | None = o.option(
        o.whole(0), None, "End before the first record at or after this time; batches only."
    )
    ending_offsets_by_timestamp: Offsets | None = o.option(_times_kind, None, "The end time of each partition.")
    from_offset: int | None = o.option(
        o.whole(0),
        None,
        "Read only offsets from this one on, of every partition; batches only. Missing offsets are not a loss.",
    )
    to_offset: int | None = o.option(
        o.whole(0), None, "Read only offsets below this one, of every partition; batches only."
    )
    max_offsets_per_trigger: int | None = o.option(
        o.whole(), None, "The maximum number of offsets per trigger, shared among partitions by backlog."
    )
    max_bytes_per_trigger: int | None = o.option(
        o.size, None, "The approximate maximum of log bytes per trigger, shared among partitions by backlog."
    )
    min_offsets_per_trigger: int | None = o.option(
        o.whole(), None, "Wait until this many offsets are available, or `maxTriggerDelay` has passed."
    )
    max_trigger_delay: int = o.option(o.duration_ms, "15m", "The longest wait for `minOffsetsPerTrigger`.")
    min_partitions: int | None = o.option(o.whole(1, 1_000_000), None, "The approximate minimum number of tasks.")
    parallel_tasks: int | None = o.option(
        o.whole(1, 1_000_000),
        None,
        "The number of tasks that run concurrently; `topic(…)` sets it if Spark runs on one machine. "
        "A query without values is split into this many tasks, or more if one would read 1 GB or more.",
    )
    max_records_per_partition: int | None = o.option(o.whole(), None, "The maximum number of offsets per task.")
    target_partition_bytes: int = o.option(
        o.size,
        "64m",
        "The approximate log bytes per task. If it is not set, a query whose columns do not include values reads "
        "four times the default.",
    )
    on_data_loss: str = o.option(
        o.one_of("fail", "skip", "report"),
        "fail",
        "What to do if records were deleted before they were read: `fail` names the exact ranges; "
        "`skip` logs them and continues; `report` appends each range once to `lossTopic` and continues. "
        "Gaps from compaction or aborted transactions are not losses.",
    )
    fail_on_data_loss: bool | None = o.option(
        o.flag, None, "As in Spark's Kafka connector: `true` is `onDataLoss=fail`, `false` is `skip`."
    )
    loss_topic: str | None = o.option(
        o.text, None, "The topic for `onDataLoss=report`; it is created if it does not exist."
    )
    group_id: str | None = o.option(
        o.text,
        None,
        "Commit progress to this group, so that the query's lag is visible like that of any consumer.",
        "kafka.group.id",
    )
    isolation: str | None = o.option(
        o.one_of("read_committed", "read_uncommitted"),
        None,
        "Default: `read_committed`, which hides records of aborted transactions.",
        "kafka.isolation.level",
    )
    include_headers: bool = o.option(o.flag, "false", "Add a column `headers`.")
    value_format: str = o.option(
        o.one_of("binary", "string", "json", "avro", "protobuf"),
        "binary",
        "The format of values; the column `value` has that type.",
    )
    value_schema: str | None = o.option(
        o.text,
        None,
        "The fields of JSON values as Spark DDL, such as `id BIGINT, at TIMESTAMP`: the column `value` is a struct.",
    )
    schema_registry: str | None = o.option(
        o.registry,
        None,
        "Values begin with the id of a schema in this registry. They are read with the schema of `valueSubject`: values "
        "written with another schema are resolved by the rules of Avro and Protobuf.",
    )
    value_subject: str | None = o.option(
        o.text, None, "The subject of the schema for reading. Default: `<topic>-value`."
    )
    value_version: str = o.option(
        o.Kind("a version number, or latest", _version),
        "latest",
        "The version of the subject. `latest` is the newest when the frame is made, or the stream started.",
    )
    value_schema_file: str | None = o.option(
        o.text,
        None,
        "A file on the driver with the schema for reading: Avro's or JSON Schema's JSON, or a .proto file. "
        "Without `schemaRegistry` values do not begin with an id, and must have been written with this schema.",
    )
    value_message: str | None = o.option(
        o.text, None, "The message of a Protobuf schema. Default: the first of its file."
    )
    bad_records: str = o.option(
        o.one_of("field", "null", "fail"),
        "field",
        "An invalid value is null, and the column `_error` gives the reason. If a field of a JSON object has the wrong "
        "type, `field` makes that field null, `null` all of them. `fail`: the query fails and names the record.",
    )
    fetch_bytes: int = o.option(
        o.size,
        "2m",
        "The log bytes that a task requests at a time; a few such pieces are prefetched.",
        "kafka.fetch.max.bytes",
    )

    def __init__(self, options: Mapping[str, str], *, streaming: bool | None) -> None:
        """Validate the options; `OptionError` says what is wrong. `streaming` None: not known yet, only the columns
        are needed."""
        meant, idle = understood(options)
        super().__init__(meant)
        for name in idle:
            warn_once(f"option {name} tunes Kafka's Java client and has no effect here")
        given = self.chosen.given
        self._refuse_unknown(streaming=streaming)
        self.on_loss = self._on_loss()
        """The policy for records that were deleted before they were read: fail, skip, report."""
        source = self.chosen.exactly_one("servers", "path")
        self._check_schema_options()
        if source == "path" and "groupId" in given:
            raise OptionError("groupId", None, "a folder has no groups to commit to: only a server has")
        if source == "path" and self.on_loss == "report":
            raise OptionError("onDataLoss", "report", "a folder is read-only: use fail or skip, or set servers")
        if self.servers is not None and (scheme := parse_url(self.servers).scheme) != "kafka":
            only = "whole batches need the Kafka listener; use its host:port, or kafka://user:token@host:port"
            raise OptionError("servers", f"{scheme}://…", only)
        self.chosen.exactly_one("subscribe", "subscribePattern", "assign")
        self.selection = Selection(self.subscribe or (), self.subscribe_pattern, self.assign or ())
        self.start = self._bound("starting", LATEST if streaming else EARLIEST, of_batch=streaming is False)
        self.end = self._bound("ending", LATEST, of_batch=True)
        self.cuts = Cuts(self.target_partition_bytes, self.min_partitions, self.max_records_per_partition)
        self.fetch_bytes = min(self.fetch_bytes, _FETCH_BYTES_MAX)
        # The option, else the URL's setting, else read_committed.
        by_url = None if self.servers is None else parse_url(self.servers).options.get("isolation")
        self.committed_only = (self.isolation or by_url or "read_committed") == "read_committed"

    def _check_schema_options(self) -> None:
        """Check that a format with schemas has exactly one, and other formats none."""
        given = self.chosen.given
        sources = given & {"valueSchema", "valueSchemaFile", "schemaRegistry"}
        if self.value_format not in _WITH_SCHEMA:
            for name in (*sources, *(given & {"valueSubject", "valueVersion", "valueMessage"})):
                raise OptionError(name, None, f"it requires valueFormat = {', '.join(_WITH_SCHEMA)}")
            return
        if not sources:
            said = "valueSchema (JSON only), schemaRegistry or valueSchemaFile must be set"
            raise OptionError("valueFormat", self.value_format, said)
        if "valueSchema" in given and (self.value_format != "json" or len(sources) > 1):
            raise OptionError("valueSchema", None, "it requires JSON values, and excludes other schemas")
        for name in given & {"valueSubject", "valueVersion"}:
            if "schemaRegistry" not in given or "valueSchemaFile" in given:
                raise OptionError(name, None, "it requires schemaRegistry, without valueSchemaFile")
        if "valueMessage" in given and self.value_format != "protobuf":
            raise OptionError("valueMessage", None, "it requires valueFormat = protobuf")

    def _refuse_unknown(self, *, streaming: bool | None) -> None:
        for name in () if streaming is None else _BATCH_ONLY if streaming else _STREAM_ONLY:
            if name in self.chosen.given:
                raise OptionError(name, None, f"it is for {'batches' if streaming else 'streams'} only")
        if "maxTriggerDelay" in self.chosen.given and "minOffsetsPerTrigger" not in self.chosen.given:
            raise OptionError("maxTriggerDelay", None, "it limits the wait for minOffsetsPerTrigger, which is not set")
        low, high = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if low is not None and high is not None and low > high:
            raise OptionError("minOffsetsPerTrigger", str(low), f"it must not exceed maxOffsetsPerTrigger = {high}")

    def _on_loss(self) -> str:
        legacy = self.fail_on_data_loss
        policy = self.on_data_loss
        if legacy is not None:
            meant = "fail" if legacy else "skip"
            if "onDataLoss" in self.chosen.given and policy != meant:
                raise OptionError(
                    "failOnDataLoss", str(legacy).lower(), f"onDataLoss is {policy}: set only one of them"
                )
            policy = meant
        if (policy == "report") != ("lossTopic" in self.chosen.given):
            raise OptionError("lossTopic", None, "it must be set if, and only if, onDataLoss = report")
        return policy

    def _bound(self, edge: str, default: int, *, of_batch: bool) -> Bound:
        """Return where to begin, or to end. The Kafka connector uses the first option that is set and ignores the
        others; here two of them are an error."""
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
