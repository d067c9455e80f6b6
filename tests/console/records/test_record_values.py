"""Values of records by schemas that another node registered: when the registry is asked, and what is left as it is."""

import asyncio
from typing import cast

import pytest

from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.console.node_client import Node, NodeError
from braidlog.console.records.record_values import RecordValues
from braidlog.console.registry.schema_registry import Registry
from braidlog.model.reporting.node_report import SchemaPage
from braidlog.registry import framing
from braidlog.registry.registry_state import Entry, Version, schema_entry
from braidlog.registry.schemas import Schema

ORDER = Schema('{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}')
VALUE = framing.head(7) + b"\x0a"  # a zig-zag 5


class SchemaLog:
    """The node's log of schemas, to which others append, and how often it was asked for."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.asked = 0
        self.is_silent = False

    async def schemas(self, topic_id: str, offset: int) -> SchemaPage:
        self.asked += 1
        if self.is_silent:
            raise NodeError("the node does not answer")
        begin = offset if topic_id else 0
        return SchemaPage("id", begin, len(self.entries), len(self.entries), self.entries[begin:])

    def register(self) -> None:
        self.entries.append(schema_entry(Version("orders-value", 1, 7, ORDER)))


def record(value: bytes | None) -> ConsumedRecord:
    return ConsumedRecord("orders", 0, 0, None, value)


@pytest.fixture
def log() -> SchemaLog:
    return SchemaLog()


@pytest.fixture
def values(log: SchemaLog) -> RecordValues:
    return RecordValues(Registry(cast("Node", log)))


def learn(values: RecordValues, *found: bytes | None) -> None:
    asyncio.run(values.learn(map(record, found)))


def test_a_schema_of_another_node_is_asked_for_once(values: RecordValues, log: SchemaLog) -> None:
    log.register()
    assert values.json_of(VALUE) is None
    learn(values, VALUE, VALUE, None, b"plain")
    assert values.json_of(VALUE) == b'{"id":5}'
    learn(values, VALUE)
    assert log.asked == 1


def test_what_names_no_schema_asks_nobody(values: RecordValues, log: SchemaLog) -> None:
    learn(values, None, b"", b"plain", b"\0\0\0")
    assert log.asked == 0
    assert [values.json_of(each) for each in (None, b"", b"plain")] == [None, None, None]


def test_an_id_that_is_missing_is_asked_for_again_after_a_while(
    values: RecordValues, log: SchemaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("braidlog.model.clock.SystemClock.monotonic", lambda _: now)
    for _ in range(3):
        learn(values, VALUE)
    assert log.asked == 1
    learn(values, framing.head(8))  # another id is another question
    assert log.asked == 2
    log.register()
    now += 1.0
    learn(values, VALUE)
    assert (log.asked, values.json_of(VALUE)) == (3, b'{"id":5}')


def test_a_registry_that_does_not_answer_leaves_records_as_they_are(values: RecordValues, log: SchemaLog) -> None:
    log.is_silent = True
    learn(values, VALUE)
    assert values.json_of(VALUE) is None
