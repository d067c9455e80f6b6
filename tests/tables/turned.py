"""A topic of a log in a folder, and the plans that a node would make of it."""

from pathlib import Path

from pyiceberg.table import Table

from braidlog.model.settings import TableForm
from braidlog.registry.registry_state import Entry
from braidlog.storage.compaction.compaction_merge import Source
from braidlog.storage.embedded_log import Topic
from braidlog.storage.files import OsDisk
from braidlog.tables import catalog, table_writer
from braidlog.tables.plan import Part, Plan, TablePlace, Turned

NOW = 1_700_000_000_000


def plan_of(
    topic: Topic,
    warehouse: Path,
    *,
    form: TableForm = TableForm.RAW,
    retention_ms: int = -1,
    now_ms: int = NOW,
    schemas: list[Entry] | None = None,
) -> Plan:
    """All closed segments of all partitions; the active ones are closed first."""
    parts = []
    for number in range(topic.partitions):
        log = topic.partition(number)
        log.roll(NOW)
        log.sync()
        sources = [
            Source(each.path, each.base_offset, each.next_offset, each.size, each.head.generation, NOW)
            for each in log.segments[:-1]
        ]
        parts.append(Part(number, log.start_offset, sources, log.aborted_in(0, log.end_offset)))
    place = TablePlace(str(warehouse), {}, "topics")
    return Plan(place, topic.name, topic._meta.topic_id, form, parts, now_ms, retention_ms, schemas or [])


def turn(plan: Plan) -> Turned:
    return table_writer.turn(plan, OsDisk())


def table_of(plan: Plan) -> Table:
    return catalog.catalog_of(plan.place).load_table((plan.place.namespace, plan.topic))


def rows_of(table: Table) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found = table.scan().to_arrow().select(["partition", "offset", "key", "value"]).to_pylist()
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in found)


def expected_of(topic: Topic) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """The committed records of every partition, as a reader of the log sees them."""
    return [
        (number, record.offset, record.key, record.value)
        for number in range(topic.partitions)
        for record in topic.iterate(partition=number)
    ]
