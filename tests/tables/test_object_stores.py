"""Tables and back-ups in stores of the protocols of S3, Google and Azure: versitygw, fake-gcs-server and Azurite. It takes
minutes to build them: `make object-stores`."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pytest
from benchmarks.peers.maven import CACHE
from deltalake import DeltaTable
from pyarrow.fs import AzureFileSystem, FileSystem, GcsFileSystem, S3FileSystem
from tests.cli.braid import Braid
from tests.console import waiting
from tests.tables.filled import fill
from tests.tables.turned import expected_of, plan_of, rows_of, table_of, turn

from braidlog.model.errors import BrokerError
from braidlog.spark.lake.delta import DeltaLakeTable
from braidlog.spark.lake.object_files import ObjectFiles
from braidlog.spark.lake.tables import open_table
from braidlog.spark.lake.writing import Form, write_files
from braidlog.spark.lake.written import Change
from braidlog.storage.embedded_log import Log, Topic
from braidlog.tables import catalog, table_writer
from braidlog.tables.files import TableIO
from braidlog.tables.plan import Plan, TablePlace
from braidlog.testing.server import hold_port
from braidlog.tools.backup.object_place import ObjectPlace

pytestmark = pytest.mark.skipif(
    os.environ.get("OBJECT_STORES") != "all", reason="builds three servers, for minutes: make object-stores"
)
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
AZURITE = "azurite@3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""What Azurite's manual says that everybody has."""
CONTAINER = "lake"
SECONDS_MAX = 3600
"""However busy the machine is. A server that has ended is not waited for."""


class Store(NamedTuple):
    """A server that runs: where tables are in it, and what a catalog is told of it."""

    uri: str
    told: dict[str, str]


def built(folder: Path, command: list[str], **environment: str) -> Path:
    """Once, by who is first; a build that was broken off is made again."""
    if not folder.is_dir():
        assert shutil.which(command[0]), f"{command[0]} is not here"
        shutil.rmtree(unfinished := folder.with_suffix(".unfinished"), ignore_errors=True)
        unfinished.mkdir(parents=True)
        own = {**os.environ, **{name: value.format(unfinished) for name, value in environment.items()}}
        words = [word.format(unfinished) for word in command]
        subprocess.run(words, check=True, env=own)  # as long as it takes: who waits for it can see it work
        unfinished.rename(folder)
    return folder


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        waiting.until(lambda: process.poll() is not None or listens(port), SECONDS_MAX)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))


@contextmanager
def versitygw(folder: Path, port: int, access: str, secret: str) -> Iterator[None]:
    """S3's protocol over files in a folder."""
    program = built(CACHE / "versitygw", ["go", "install", VERSITYGW], GOBIN="{}") / "versitygw"
    (folder / "objects").mkdir()
    own = ["--port", f"127.0.0.1:{port}", "--access", access, "--secret", secret, "--quiet"]
    with running([str(program), *own, "posix", str(folder / "objects")], port, folder / "log"):
        yield


@contextmanager
def amazon(folder: Path, port: int) -> Iterator[Store]:
    with versitygw(folder, port, "user", "password"):
        url = f"http://127.0.0.1:{port}"
        keys = {"access_key": "user", "secret_key": "password", "region": "us-east-1"}
        make_container(S3FileSystem(endpoint_override=url, allow_bucket_creation=True, **keys))
        told = {
            "s3.endpoint": url,
            "s3.access-key-id": "user",
            "s3.secret-access-key": "password",
            "s3.region": "us-east-1",
        }
        yield Store(f"s3://{CONTAINER}/braidlog", told)


@contextmanager
def google(folder: Path, port: int) -> Iterator[Store]:
    program = built(CACHE / "fake-gcs-server", ["go", "install", GCS], GOBIN="{}") / "fake-gcs-server"
    own = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    with running([str(program), *own, "-public-host", f"127.0.0.1:{port}"], port, folder / "log"):
        files = GcsFileSystem(anonymous=True, scheme="http", endpoint_override=f"127.0.0.1:{port}", project_id="p")
        make_container(files)
        told = {
            "gcs.service.host": f"http://127.0.0.1:{port}",
            "gcs.oauth2.token": "any",
            "gcs.oauth2.token-expires-at": str(2**42),
        }
        yield Store(f"gs://{CONTAINER}/braidlog", told)


@contextmanager
def azure(folder: Path, port: int) -> Iterator[Store]:
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", "{}", AZURITE]
    program = built(CACHE / "azurite", command) / "node_modules" / ".bin" / "azurite-blob"
    own = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]
    with running([str(program), *own], port, folder / "log"):
        host = f"127.0.0.1:{port}"
        told = {
            "adls.account-name": ACCOUNT,
            "adls.account-key": KEY,
            "adls.blob-storage-authority": host,
            "adls.dfs-storage-authority": host,
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-scheme": "http",
        }
        arguments = {name.removeprefix("adls.").replace("-", "_"): value for name, value in told.items()}
        make_container(AzureFileSystem(**arguments))
        yield Store(f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/braidlog", told)


def make_container(files: FileSystem) -> None:
    """Once it answers: that it listens is not enough."""

    def made() -> bool:
        with contextlib.suppress(OSError, pa.ArrowException):
            files.create_dir(CONTAINER)
            return True
        return False

    waiting.until(made, SECONDS_MAX)


@pytest.fixture(scope="module", params=[amazon, google, azure], ids=["amazon", "google", "azure"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    holder, port = hold_port()
    with request.param(tmp_path_factory.mktemp("store"), port) as store:
        yield store
    os.close(holder)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    topic = Log(str(tmp_path / "data")).create_topic("orders", partitions=2, segment_bytes=4096)
    fill(topic, 10)
    return topic


def in_store(topic: Topic, store: Store, folder: Path) -> Plan:
    told = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "py-io-impl": catalog._IO, **store.told}
    place = TablePlace(f"{store.uri}/{folder.name}", told, "topics")
    return msgspec.structs.replace(plan_of(topic, folder), place=place)


def names_of(plan: Plan) -> set[str]:
    table = table_of(plan)
    assert isinstance(table.io, TableIO)
    return set(table.io.names(catalog.data_folder(table)))


def named_by(plan: Plan) -> set[str]:
    return {task.file.file_path.rpartition("/")[2] for task in table_of(plan).scan().plan_files()}


def test_rows_are_in_the_store(topic: Topic, store: Store, tmp_path: Path) -> None:
    for files in (2, 4):
        fill(topic, 5)
        plan = in_store(topic, store, tmp_path)
        done = turn(plan)
        assert (done.metadata.startswith(store.uri), done.files) == (True, files)
        assert rows_of(table_of(plan)) == expected_of(topic)
        assert named_by(plan) == names_of(plan)


def test_what_never_became_rows_is_removed(
    topic: Topic, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("the machine is gone")

    plan = in_store(topic, store, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit", refuse)
        with pytest.raises(BrokerError, match="the machine is gone"):
            turn(plan)
    assert len(names_of(plan)) == 2
    table_writer._swept.clear()
    turn(plan)
    assert rows_of(table_of(plan)) == expected_of(topic)
    assert (len(names_of(plan)), names_of(plan)) == (2, named_by(plan))


def test_a_backup_is_in_the_store_and_comes_back(store: Store, tmp_path: Path) -> None:
    with Log(str(tmp_path / "data")) as log:
        fill(log.create_topic("orders", partitions=2, segment_bytes=4096), 10)
        wanted = [list(log.topic("orders").iterate(0, partition=number)) for number in range(2)]
    braid, kept, data = Braid(), f"{store.uri}/{tmp_path.name}", str(tmp_path / "data")
    told = tmp_path / "store.toml"
    told.write_text("".join(f'"{name}" = "{value}"\n' for name, value in store.told.items()))
    braid.environment["BRAID_STORE_FILE"] = str(told)
    for added in (True, False):
        made = braid.json("backup", "create", kept, "--data", data, schema="backup-create")
        assert (made["added"] > 0) is added
    with ObjectPlace(kept, store.told).writing():
        assert "is in use" in braid.fails(3, "backup", "prune", kept, "--keep", "1", "--yes")
    braid.ok("backup", "prune", kept, "--keep", "1", "--yes")
    assert braid.json("backup", "verify", kept, schema="backup-verify")["faults"] == []
    braid.ok("restore", kept, str(tmp_path / "restored"))
    with Log(str(tmp_path / "restored")) as log:
        assert [list(log.topic("orders").iterate(0, partition=number)) for number in range(2)] == wanted
    assert "bucket 'nowhere' does not exist" in braid.fails(
        3, "backup", "list", kept.replace(f"//{CONTAINER}", "//nowhere")
    )


def test_rows_of_a_delta_table_are_in_the_store_once(store: Store, tmp_path: Path) -> None:
    """Partitions whose names have to be escaped; a batch that comes again; an entry of the log that another was first with."""
    if not store.uri.startswith("s3://"):
        pytest.skip("Delta tables are kept in stores of S3's protocol only")
    path = f"{store.uri}/{tmp_path.name} x/events"
    table, other = (open_table("delta", path, store=store.told) for _ in range(2))
    assert isinstance(table, DeltaLakeTable)
    rows = pa.record_batch({"id": pa.array(range(6)), "kind": [f"a/b {n % 3}" for n in range(6)]})
    schema = table.prepare(rows.schema, ("kind",), merge_schema=False)
    form = Form(table.location, schema, ("kind",), properties=table.properties)

    def change(sink: str, batch: int) -> Change:
        return Change(tuple(write_files([rows], form)), schema, sink, batch, partition_by=("kind",))

    def objects() -> set[str]:
        return {each for each in ObjectFiles(path, store.told).walk() if "_delta_log" not in each}

    assert [table.commit(change("a", batch)) for batch in (0, 1, 0)] == [True, True, False]
    assert objects() == set(table.paths()), "what the replay wrote is removed, and nothing else"
    assert {each.path for each in table.added(0, 2)} == set(table.paths())

    load, late = table._load, table._load()

    def stale() -> DeltaTable:
        other.commit(change("other", 0))
        table._load = load  # type: ignore[method-assign]
        return late

    table._load = stale  # type: ignore[method-assign,assignment]
    assert table.commit(change("a", 2))
    assert load().to_pyarrow_table().num_rows == 4 * 6
    assert table.compact(2**30).files_added == 3
    table.vacuum(0)
    assert objects() == set(table.paths())
    assert sorted(load().to_pyarrow_table().column("id").to_pylist()) == sorted(4 * [*range(6)])
