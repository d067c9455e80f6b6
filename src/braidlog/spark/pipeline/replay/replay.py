"""Replay: rebuilds layers and tables from the log, or from bronze; the log itself is only appended to.

Does not handle: running stages. Nothing is removed before its replacement is written. The next run resumes an
interrupted replay. Records of an earlier generation stay in the layers' topics, and readers of the new generation
start behind them.

| --from                            | rebuilt                             | from                                  |
|-----------------------------------|--------------------------------------|---------------------------------------|
| earliest, an offset, a timestamp  | all but bronze                       | the source topics, from that position |
| bronze                            | all but bronze                       | the table bronze, then the log        |
| silver                            | readers of silver, and their readers | the topic of silver                   |
| windows                           | readers of windows                  | the topic of windows                  |
"""

import secrets
from typing import Final

import msgspec

from braidlog.model.clock import SystemClock
from braidlog.model.time_parsing import parse_time
from braidlog.spark.pipeline.checkpoints import Offsets, position
from braidlog.spark.pipeline.config import refusal
from braidlog.spark.pipeline.layers import records, tables
from braidlog.spark.pipeline.ledger import Generation, Ledger
from braidlog.spark.pipeline.project import SOURCE, Project
from braidlog.spark.pipeline.stage_runner import Runner
from braidlog.spark.pipeline.status import DEAD_LETTERS, layers_read

BRONZE: Final = "bronze"
DECLARED_SOURCE: Final = "records"
"""The source of all flows of a declarative pipeline: flows without a checkpoint all begin at one position."""
_WRITES_LAYER: Final = {"silver": "silver", "windows": "windows"}
_WRITES_TABLE: Final = {"silver-table": "silver", "gaps": "gaps", "windows-table": "windows"}


class Plan(msgspec.Struct, frozen=True):
    """What a replay does. `starts` are options of the source, by stage."""

    origin: str
    generation: int
    stages: tuple[str, ...]
    tables: tuple[str, ...]
    starts: dict[str, dict[str, str]]
    from_bronze: bool = False

    def sentences(self, project: Project) -> list[str]:
        """Describe what will be rewritten."""
        said = [f"generation {self.generation} of {', '.join(self.stages)}, from {self.origin}"]
        said += [f"table {name} is rebuilt ({project.place(name)})" for name in self.tables]
        topics = {"dead-letters": project.dead_letter_topic, "windows": project.windows_topic}
        if not project.is_declarative:
            topics["silver"] = project.silver_topic
        if project.is_declarative:
            others = [name for name in self.stages if name not in self.tables]
            topics = {name: topics["dead-letters"] if name in DEAD_LETTERS else f"of {name}" for name in others}
        said += [f"topic {topics[name]} gets the records again" for name in self.stages if name in topics]
        if "state" in self.stages:
            said.append("keys of the key-value store are set again; none is removed")
        if self.from_bronze:
            said.append(
                "then the stream continues after bronze's last record; duplicates of earlier records are not recognized"
            )
        return said


def make_plan(project: Project, origin: str, ends: Offsets) -> Plan:
    """Plan a replay for `--from`. `ends` are the current ends of all topics."""
    if project.is_declarative:
        return _declarative_plan(project, origin, ends)
    reads = layers_read(project)
    layer = origin if origin in ("silver", "windows") else SOURCE
    if layer == "windows" and "windows-table" not in reads:
        raise refusal("the pipeline has no [gold.windows]")
    chosen = [name for name in _following(reads, layer) if name != BRONZE]
    generation = Ledger(project.storage).generation()
    starts: dict[str, dict[str, str]] = {}
    for name in chosen:
        if reads[name] == layer:
            starts[name] = _origin_options(project, generation, origin, name, ends)
        else:
            # Its layer is rewritten: it begins after the records of earlier generations.
            starts[name] = {"startingOffsets": _json(_of(project.layer_topics(reads[name]), ends))}
    own = {stage.name: stage.table for stage in project.pipeline.stages if stage.table}
    made = tuple({**_WRITES_TABLE, **own}[name] for name in chosen if name in {**_WRITES_TABLE, **own})
    return Plan(origin, generation.latest + 1, tuple(chosen), made, starts, origin == BRONZE)


def _declarative_plan(project: Project, origin: str, ends: Offsets) -> Plan:
    """Replay every flow but bronze, whose rows the log may have deleted. Spark's own refresh would append to existing
    sink data."""
    if origin in (BRONZE, "silver", "windows"):
        raise refusal(f"--from {origin}: a pipeline of kind sdp is replayed from earliest, an offset or a time")
    chosen = [name for name in project.flows() if name != BRONZE]
    if not chosen:
        raise refusal("there is nothing to replay yet: run the pipeline first")
    made = tuple(name for name in chosen if project.table(name).is_dir())
    starts = {DECLARED_SOURCE: position_options(_of(project.source.topics, ends), origin)}
    return Plan(origin, Ledger(project.storage).generation().latest + 1, tuple(chosen), made, starts)


def _following(reads: dict[str, str], layer: str) -> list[str]:
    """Return the stages that read a layer, and the stages that read their output."""
    stages = [name for name, read in reads.items() if read == layer]
    for name in list(stages):
        if name in _WRITES_LAYER:
            stages += _following(reads, _WRITES_LAYER[name])
    return list(dict.fromkeys(stages))


def _of(topics: tuple[str, ...], ends: Offsets) -> Offsets:
    return {topic: ends.get(topic, {}) for topic in topics}


def _json(offsets: Offsets) -> str:
    return msgspec.json.encode(offsets).decode()


def _origin_options(project: Project, generation: Generation, origin: str, stage: str, ends: Offsets) -> dict[str, str]:
    if origin == BRONZE:
        return {"startingOffsets": _json(bronze_end(project))}
    if origin in ("silver", "windows"):
        # The start of this generation of the layer.
        return generation.starts.get(stage, {"startingOffsets": "earliest"})
    return position_options(_of(project.source.topics, ends), origin)


def bronze_end(project: Project) -> Offsets:
    """Return the offsets up to which bronze has read."""
    where = position(project.checkpoint(BRONZE, 1))
    if where.batch < 0:
        raise refusal("bronze does not exist yet: run the pipeline first")
    return where.offsets


def position_options(ends: Offsets, text: str, prefix: str = "starting") -> dict[str, str]:
    """Return source options for an offset, a timestamp or a word. An offset applies to every partition that has
    reached it."""
    if text in ("earliest", "latest"):
        return {f"{prefix}Offsets": text}
    if text.isdigit():
        offsets = {
            topic: {number: min(int(text), end) for number, end in found.items()} for topic, found in ends.items()
        }
        return {f"{prefix}Offsets": _json(offsets)}
    options = {f"{prefix}Timestamp": str(parse_time_ms(text))}
    return options | ({"startingOffsetsByTimestampStrategy": "latest"} if prefix == "starting" else {})


def parse_time_ms(text: str) -> int:
    try:
        return parse_time(text, SystemClock().now_ms())
    except ValueError:
        raise refusal(f"{text!r} is neither an offset, nor a time such as 2026-11-15T08:00:00Z, nor a layer") from None


# -- executing a plan ----------------------------------------------------------------------------------------------


def begin(project: Project, plan: Plan) -> Generation:
    """Begin the new generation: the next run uses it."""
    ledger = Ledger(project.storage)
    old = ledger.generation()
    new = Generation(
        plan.generation,
        {**old.stages, **dict.fromkeys(plan.stages, plan.generation)},
        {**old.starts, **plan.starts},
        plan.stages if project.is_declarative else plan.tables,
        plan.from_bronze,
        secrets.token_hex(8),
        old.owner,
        {**old.tables, **dict.fromkeys(plan.tables, plan.generation)},
    )
    ledger.begin(new)
    return settle(project)


def settle(project: Project) -> Generation:
    """Move the tables aside that a new generation rebuilds, unless that is done; called before any operation."""
    ledger = Ledger(project.storage)
    generation = ledger.generation()
    if project.is_in_store and not generation.owner:
        generation = msgspec.structs.replace(generation, owner=secrets.token_hex(8))
        ledger.begin(generation)
    for table in generation.replacing:
        if project.is_in_store:
            tables.opened(project, table).renew()
            continue
        tables.put_aside(project, table, generation.latest)  # does nothing if the table was moved aside before
        if project.is_declarative:  # its checkpoint too: without it, a flow starts over, as a sink with a new name
            tables.move_aside(project.flow(table), project.replaced(f"{table}.flow", generation.latest))
    if generation.replacing:
        generation = msgspec.structs.replace(generation, replacing=())
        ledger.begin(generation)
    return generation


def rebuild_from_bronze(runner: Runner, project: Project) -> Generation:
    """Rebuild silver and the dead letters from all of bronze, in one batch each."""
    bronze = tables.read(runner.spark, project, BRONZE, runner.spark.createDataFrame([], records.SCHEMA).schema)
    for stage in runner.stages:
        if stage.reads == SOURCE and stage.name != BRONZE:
            runner.publish_batch(stage, bronze)
    ledger = Ledger(project.storage)
    done = msgspec.structs.replace(ledger.generation(), from_bronze=False)
    ledger.begin(done)
    return done
