"""Replay: make layers and tables anew from the log, or from bronze; the log itself is only added to.

Knows: which stages follow from which, and what a new generation of them begins with. Refuses to know: how stages run.
Invariants: nothing is removed before what takes its place is written; a replay that is interrupted goes on with the next run;
records of an earlier generation stay in the layers' topics, and the new generation's readers begin behind them.

| --from                            | made anew                            | out of                                |
|-----------------------------------|--------------------------------------|---------------------------------------|
| earliest, an offset, a timestamp  | all but bronze                       | the source topics, from there on      |
| bronze                            | all but bronze                       | the table bronze, then the log        |
| silver                            | what reads silver, and what follows  | the topic of silver                   |
| windows                           | what reads windows                   | the topic of windows                  |
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
"""What all flows of a declarative pipeline read: it begins at one place for all that have no checkpoint."""
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
        """What will be rewritten, in words."""
        said = [f"generation {self.generation} of {', '.join(self.stages)}, from {self.origin}"]
        said += [f"table {name} is made anew ({project.place(name)})" for name in self.tables]
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
                "then the stream goes on where bronze ends; a repetition of a record before that is not recognised"
            )
        return said


def make_plan(project: Project, origin: str, ends: Offsets) -> Plan:
    """What `--from` means. `ends` are those of all topics, now."""
    if project.is_declarative:
        return _declarative_plan(project, origin, ends)
    reads = layers_read(project)
    layer = origin if origin in ("silver", "windows") else SOURCE
    if layer == "windows" and "windows-table" not in reads:
        raise refusal("there is no [gold.windows]")
    chosen = [name for name in _following(reads, layer) if name != BRONZE]
    generation = Ledger(project.storage).generation()
    starts: dict[str, dict[str, str]] = {}
    for name in chosen:
        if reads[name] == layer:
            starts[name] = _origin_options(project, generation, origin, name, ends)
        else:
            # Its layer is written anew: it begins behind what earlier generations have left there.
            starts[name] = {"startingOffsets": _json(_of(project.layer_topics(reads[name]), ends))}
    own = {each.name: each.table for each in project.pipeline.stages if each.table}
    made = tuple({**_WRITES_TABLE, **own}[name] for name in chosen if name in {**_WRITES_TABLE, **own})
    return Plan(origin, generation.latest + 1, tuple(chosen), made, starts, origin == BRONZE)


def _declarative_plan(project: Project, origin: str, ends: Offsets) -> Plan:
    """Every flow but bronze, whose rows the log may have forgotten. Spark's own refresh would add to a sink what is there."""
    if origin in (BRONZE, "silver", "windows"):
        raise refusal(f"--from {origin}: a pipeline of kind sdp is replayed from earliest, an offset or a time")
    chosen = [name for name in project.flows() if name != BRONZE]
    if not chosen:
        raise refusal("there is nothing to replay yet: run the pipeline first")
    made = tuple(name for name in chosen if project.table(name).is_dir())
    starts = {DECLARED_SOURCE: position_options(_of(project.source.topics, ends), origin)}
    return Plan(origin, Ledger(project.storage).generation().latest + 1, tuple(chosen), made, starts)


def _following(reads: dict[str, str], layer: str) -> list[str]:
    """The stages that read a layer, and those that read what these write."""
    found = [name for name, read in reads.items() if read == layer]
    for name in list(found):
        if name in _WRITES_LAYER:
            found += _following(reads, _WRITES_LAYER[name])
    return list(dict.fromkeys(found))


def _of(topics: tuple[str, ...], ends: Offsets) -> Offsets:
    return {topic: ends.get(topic, {}) for topic in topics}


def _json(offsets: Offsets) -> str:
    return msgspec.json.encode(offsets).decode()


def _origin_options(project: Project, generation: Generation, origin: str, stage: str, ends: Offsets) -> dict[str, str]:
    if origin == BRONZE:
        return {"startingOffsets": _json(bronze_end(project))}
    if origin in ("silver", "windows"):
        # Where this generation of the layer began.
        return generation.starts.get(stage, {"startingOffsets": "earliest"})
    return position_options(_of(project.source.topics, ends), origin)


def bronze_end(project: Project) -> Offsets:
    """How far bronze has read."""
    where = position(project.checkpoint(BRONZE, 1))
    if where.batch < 0:
        raise refusal("there is no bronze yet: run the pipeline first")
    return where.offsets


def position_options(ends: Offsets, text: str, prefix: str = "starting") -> dict[str, str]:
    """An offset, a timestamp or a word, as options of the source. An offset is meant for every partition that has got so far."""
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
        raise refusal(
            f"{text!r} is neither an offset, nor a time such as 2026-11-15T08:00:00Z, nor the name of a layer"
        ) from None


# -- doing it ------------------------------------------------------------------------------------------------------


def begin(project: Project, plan: Plan) -> Generation:
    """From here on the next run is of the new generation."""
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
    """Put aside the tables that a new generation makes anew, unless that is done; called before anything runs."""
    ledger = Ledger(project.storage)
    generation = ledger.generation()
    if project.is_in_store and not generation.owner:
        generation = msgspec.structs.replace(generation, owner=secrets.token_hex(8))
        ledger.begin(generation)
    for table in generation.replacing:
        if project.is_in_store:
            tables.opened(project, table).renew()
            continue
        tables.put_aside(project, table, generation.latest)  # one that is aside already is not in its place any more
        if project.is_declarative:  # its checkpoint too: without it, a flow begins anew, as a sink of a new name
            tables.move_aside(project.flow(table), project.replaced(f"{table}.flow", generation.latest))
    if generation.replacing:
        generation = msgspec.structs.replace(generation, replacing=())
        ledger.begin(generation)
    return generation


def rebuild_from_bronze(runner: Runner, project: Project) -> Generation:
    """Silver and the dead letters of all that bronze holds, in one batch each."""
    bronze = tables.read(runner.spark, project, BRONZE, runner.spark.createDataFrame([], records.SCHEMA).schema)
    for stage in runner.stages:
        if stage.reads == SOURCE and stage.name != BRONZE:
            runner.publish_batch(stage, bronze)
    ledger = Ledger(project.storage)
    done = msgspec.structs.replace(ledger.generation(), from_bronze=False)
    ledger.begin(done)
    return done
