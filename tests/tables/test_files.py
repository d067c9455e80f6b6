"""A table in an object store: rows are the topic's records, once, whatever the store does in the middle of a turn."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.tables.filled import fill
from tests.tables.object_store import BUCKET, SILENT, ObjectStore, forwarded, object_store
from tests.tables.test_object_stores import versitygw
from tests.tables.turned import expected_of, plan_of, rows_of, table_of, turn

from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.embedded_log import Log, Topic
from braidlog.tables import catalog
from braidlog.tables.files import TableIO
from braidlog.tables.plan import Plan, TablePlace
from braidlog.testing.server import hold_port


@pytest.fixture(scope="module", params=["moto", "versitygw"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """The same layer fails in front of both."""
    if request.param == "moto":
        with object_store() as store:
            yield store
        return
    if os.environ.get("OBJECT_STORES") != "all":
        pytest.skip("builds a server, for minutes: make object-stores")
    holder, port = hold_port()
    with versitygw(tmp_path_factory.mktemp("store"), port, "a", "b"), object_store(forwarded(port)) as store:
        yield store
    os.close(holder)


def in_store(plan: Plan, store: ObjectStore, folder: Path) -> Plan:
    place = TablePlace(f"s3://{BUCKET}/{folder.name}", store.told(folder / "catalog.db"), "topics")
    return msgspec.structs.replace(plan, place=place)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    topic = Log(str(tmp_path / "data")).create_topic("orders", partitions=2, segment_bytes=4096)
    fill(topic, 10)
    return topic


def names_of(plan: Plan) -> set[str]:
    table = table_of(plan)
    assert isinstance(table.io, TableIO)
    return set(table.io.names(catalog.data_folder(table)))


def named_by(plan: Plan) -> set[str]:
    return {task.file.file_path.rpartition("/")[2] for task in table_of(plan).scan().plan_files()}


def test_rows_are_in_the_store(topic: Topic, store: ObjectStore, tmp_path: Path) -> None:
    for files in (2, 4):
        fill(topic, 5)
        plan = in_store(plan_of(topic, tmp_path), store, tmp_path)
        done = turn(plan)
        assert (done.metadata.startswith(f"s3://{BUCKET}/"), done.files) == (True, files)
        assert rows_of(table_of(plan)) == expected_of(topic)
        assert named_by(plan) == names_of(plan)


@pytest.mark.parametrize("how", ["throttled", "half"])
def test_a_store_that_fails_at_whatever_request(topic: Topic, store: ObjectStore, tmp_path: Path, how: str) -> None:
    """At the first, at the sixth, and so on, until one turn needs fewer: it says so, and the next turn makes up for it."""
    turn(in_store(msgspec.structs.replace(plan_of(topic, tmp_path), parts=[]), store, tmp_path))  # the table is there
    told: list[BrokerError] = []
    at = 0
    while True:
        store.fail_from(at, how)
        plan = in_store(plan_of(topic, tmp_path), store, tmp_path)
        try:
            turn(plan)
        except BrokerError as error:
            told.append(error)
        has_failed = bool(store.failed)
        store.mend()
        turn(plan)
        assert rows_of(table_of(plan)) == expected_of(topic)
        assert named_by(plan) == names_of(plan), "what never became rows is removed"
        if not has_failed:
            break
        fill(topic, 2)
        at += 5
    assert len(told) > 1
    assert {error.reason for error in told} == {Reason.UNAVAILABLE}
    assert all("cannot write the table of topic 'orders'" in str(error) for error in told)


def test_a_store_that_never_answers(topic: Topic, store: ObjectStore, tmp_path: Path) -> None:
    """When files are written: the turn ends by itself, and says so."""
    plan = in_store(plan_of(topic, tmp_path), store, tmp_path)
    impatient = {**plan.place.catalog, "s3.request-timeout": "1", "s3.connect-timeout": "1"}
    store.fail_from(0, SILENT, about=".parquet")
    with pytest.raises(BrokerError, match=r"cannot write the table of topic 'orders': .*imeout"):
        turn(msgspec.structs.replace(plan, place=msgspec.structs.replace(plan.place, catalog=impatient)))
    assert store.failed
    store.mend()
    turn(plan)
    assert rows_of(table_of(plan)) == expected_of(topic)
    assert named_by(plan) == names_of(plan)
