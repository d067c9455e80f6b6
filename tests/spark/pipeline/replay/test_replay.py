"""A pipeline's tables in an object store: replays that are killed at every point, without Spark; and a whole pipeline with it."""

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests.spark.pipeline.shop import Shop, expected, read_all, write_project
from tests.spark.pipeline.tables import read_from_store, rows_of
from tests.spark.pipeline.test_pipeline import check, run_once
from tests.tables.object_store import BUCKET, ObjectStore, object_store

from braidlog.spark.lake.contract import Table
from braidlog.spark.lake.delta import DeltaLakeTable
from braidlog.spark.lake.errors import LakeError
from braidlog.spark.lake.iceberg import IcebergTable
from braidlog.spark.lake.object_files import ObjectFiles
from braidlog.spark.lake.writing import Form, write_files
from braidlog.spark.lake.written import Change
from braidlog.spark.pipeline import operations
from braidlog.spark.pipeline.layers import tables, upkeep
from braidlog.spark.pipeline.ledger import Ledger
from braidlog.spark.pipeline.operations import Wishes
from braidlog.spark.pipeline.project import Project, open_project
from braidlog.spark.pipeline.replay import replay as replaying
from braidlog.spark.pipeline.replay.replay import Plan
from braidlog.spark.pipeline.stage_runner import StopRequest
from braidlog.spark.pipeline.status import status
from braidlog.tables.catalog import open_catalog
from braidlog.testing.server import ServerProcess

TABLES = ("silver", "windows")
LEAST = """
name = "shop"
storage = "s3://{bucket}/{folder}"
[source]
topics = ["orders"]
[tables]
format = "{kind}"
[tables.store]
{store}
{catalog}
[silver]
schema = "id string"
[gold.windows]
"""
POINTS = {
    "ledger": "Ledger.begin = then_die(Ledger.begin)",
    "a table is put aside": "Kind._put_aside = then_die(Kind._put_aside)",
    "all tables are put aside": "Kind.prepare = die",
    "a table is made": "Kind.prepare = then_die(Kind.prepare)",
    "files": "Kind.commit = die",
    "commit": "Kind.commit = then_die(Kind.commit)",
    "nothing is left to do": "Kind.forget_earlier = die",
}
OF_ICEBERG = {
    "a table has no name yet": "rename = SqlCatalog.rename_table; SqlCatalog.rename_table = lambda own, old, new: "
    "rename(own, old, new) if '_before_' in new else die()",
    "forgetting": "SqlCatalog.purge_table = then_die(SqlCatalog.purge_table)",
}
KINDS: dict[str, type[Table]] = {"delta": DeltaLakeTable, "iceberg": IcebergTable}
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__])


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("node") / "data", admin=True) as found:
        yield found


def project_of(kind: str, store: ObjectStore, folder: Path) -> Project:
    told = "".join(f'"{name}" = "{value}"\n' for name, value in store.properties.items())
    catalog = f'[tables.catalog]\ntype = "sql"\nuri = "sqlite:///{folder}/catalog.db"' if kind == "iceberg" else ""
    text = LEAST.format(bucket=BUCKET, folder=folder.name, kind=kind, store=told, catalog=catalog)
    (folder / "pipeline.toml").write_text(text)
    return open_project(folder)


# -- the driver ----------------------------------------------------------------------------------------------------


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(act: Callable[..., object]) -> Callable[..., None]:
    def both(*given: object, **named: object) -> None:
        act(*given, **named)
        die()

    return both


def rows(generation: int) -> pa.RecordBatch:
    """Columns change their types from one generation to the next: a table that is made anew takes them."""
    ids: list[object] = [*range(5)] if generation == 1 else [f"{generation}-{n}" for n in range(5)]
    return pa.record_batch({"id": ids})


def run(project: Project, plan: Plan | None = None) -> None:
    """What a run does to tables, one micro-batch for each: who goes on from a checkpoint repeats its last batch."""
    if plan is not None:
        replaying.begin(project, plan)
    generation = replaying.settle(project)
    for name in TABLES:
        batch, table = rows(generation.latest), tables.opened(project, name)
        schema = table.prepare(batch.schema, (), merge_schema=False)
        files = write_files([batch], Form(table.location, schema, (), properties=table.properties))
        table.commit(Change(tuple(files), schema, f"query of generation {generation.latest}", 0))
    tables.remove_aside(project)


def replay(number: int) -> Plan:
    return Plan("earliest", number, TABLES, TABLES, {})


def run_until(folder: str, point: str) -> None:
    project = open_project(folder)
    own = {"Kind": KINDS[project.pipeline.tables.format], "Ledger": Ledger, "SqlCatalog": SqlCatalog}
    exec({**POINTS, **OF_ICEBERG}[point], {**own, "die": die, "then_die": then_die})
    run(project, replay(2))


def run_and_die(project: Project, point: str) -> None:
    process = _forks.Process(target=run_until, args=(str(project.folder), point))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


# -- what readers see ----------------------------------------------------------------------------------------------


def catalog_of(project: Project) -> Catalog:
    settings = project.pipeline.tables
    return open_catalog("default", {**settings.catalog, **settings.store})


def ids_of(project: Project, table: str) -> list[object]:
    """As deltalake or pyiceberg read them."""
    return read_from_store(project, table).column("id").to_pylist()  # type: ignore[no-any-return] # pyarrow has no types


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_that_is_killed(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    """At every point with `make spark` (SPARK=full), at three of them in a plain run."""
    points = [*POINTS, *(OF_ICEBERG if kind == "iceberg" else ())]
    if os.environ.get("SPARK") != "full":
        points = random.sample(points, 3)
        print(f"killed at: {', '.join(points)}")
    for number, point in enumerate(points):
        folder = tmp_path / f"{tmp_path.name}-{number}"
        folder.mkdir()
        killed_at(point, project_of(kind, store, folder))


def killed_at(point: str, project: Project) -> None:
    run(project)
    assert [ids_of(project, name) for name in TABLES] == 2 * [[*range(5)]]
    run_and_die(project, point)
    run(project)  # whoever comes next
    wanted = [f"2-{n}" for n in range(5)]
    assert [ids_of(project, name) for name in TABLES] == [wanted, wanted], point
    if project.pipeline.tables.format == "iceberg":
        assert sorted(found[-1] for found in catalog_of(project).list_tables("shop")) == sorted(TABLES)
        left = ObjectFiles(project.pipeline.storage, project.pipeline.tables.store).walk()
        assert {path.split("/")[-3] for path in left} == {f"{name}_2" for name in TABLES}, "earlier ones are gone"


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_another_edition_are_refused(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    """A driver that went on after a replay; and a pipeline whose checkpoints are lost, which would write every row again."""
    project = project_of(kind, store, tmp_path)
    run(project)
    late = tables.opened(project, "silver")
    change = Change((), late.prepare(rows(1).schema, (), merge_schema=False), "late", 0)
    replaying.begin(project, replay(2))
    with pytest.raises(LakeError, match=r"was recreated by another run|no table"):
        late.commit(change)
    run(project)
    with pytest.raises(LakeError, match=r"was recreated by another run \(edition 2\)"):
        late.commit(change)
    (project.storage / "generation.json").unlink()
    with pytest.raises(LakeError, match="checkpoints are lost"):
        run(project)
    assert ids_of(project, "silver") == [f"2-{n}" for n in range(5)]


def put_into(store: ObjectStore, folder: Path, kind: str, tmp_path: Path) -> None:
    """A project's tables are in the store from here on."""
    own = project_of(kind, store, tmp_path).pipeline
    told = {"tables.store": own.tables.store, "tables.catalog": own.tables.catalog}
    sections = "".join(
        f"\n[{name}]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in values.items())
        for name, values in told.items()
        if values
    )
    text = (folder / "pipeline.toml").read_text()
    (folder / "pipeline.toml").write_text(f'storage = "{own.storage}/{folder.name}"\n{text}{sections}')


def test_a_pipeline_in_a_store(spark: SparkSession, node: ServerProcess, store: ObjectStore, tmp_path: Path) -> None:
    """With Spark: run, replayed out of bronze after a change of columns. A plain run takes one kind of table, `make spark`
    (SPARK=full) both, and more runs and a compaction."""
    shop = Shop(node, seed=20260502)
    kinds = list(KINDS)
    if os.environ.get("SPARK") != "full":
        kinds = [random.choice(kinds)]
        print(f"tables of {kinds[0]}")
    for kind in kinds:
        shop.send(100)
        folder = write_project(tmp_path / kind, node, name=f"in-{kind}", table_format=kind)
        put_into(store, folder, kind, tmp_path)
        project = run_once(spark, folder)
        check(node, project)
        if len(kinds) > 1:
            shop.send(50)
            run_once(spark, folder)
            check(node, project)
            assert upkeep.compact_tables(project, frozenset(["bronze"]), 3600)["bronze"].files_added
        plan = operations.plan_replay(project, "bronze")
        assert f"table silver is rebuilt ({project.place('silver')})" in plan.sentences(project)
        (folder / "transforms" / "loud.sql").write_text("SELECT *, length(type) AS loud FROM input")
        operations.run(spark, project, Wishes(once=True), StopRequest(), lambda _: None, plan)
        check(node, project)
        assert {row.loud for row in rows_of(project, "silver")} == {4, 6}
        assert status(project, None).tables == {
            name: project.place(name) for name in ("bronze", "silver", "gaps", "windows", "latest")
        }


@pytest.mark.skipif(os.environ.get("SPARK") != "full", reason="runs three jobs for each kind of table: make spark")
@pytest.mark.parametrize("kind", KINDS)
def test_a_backfill_in_a_store(
    spark: SparkSession, node: ServerProcess, store: ObjectStore, tmp_path: Path, kind: str
) -> None:
    topic = f"returned-{kind}"
    shop = Shop(node, seed=20261117, topic=topic)
    shop.send(40)
    folder = write_project(
        tmp_path / topic, node, name=topic, topic=topic, starting="latest", table_format=kind, more=""
    )
    put_into(store, folder, kind, tmp_path)
    run_once(spark, folder)
    shop.send(40)
    project = run_once(spark, folder)
    log, before = read_all(node, topic), len(rows_of(project, "bronze"))
    assert 40 <= before < len(log)
    done = operations.backfill(spark, project, "earliest", "latest", dry_run=False)
    assert (done.records, done.added["bronze"]) == (len(log), len(log) - before)
    places = [(row.partition, row.offset) for row in rows_of(project, "bronze")]
    assert sorted(places) == sorted((each.partition, each.offset) for each in log)
    names = [row._id for row in rows_of(project, "silver")]
    assert sorted(names) == sorted(expected(log).silver)
    again = operations.backfill(spark, project, "earliest", "latest", dry_run=False)
    assert set(again.added.values()) == {0}
