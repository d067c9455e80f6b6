"""Tables and back-ups in stores of Google's and Azure's protocols: fake-gcs-server and Azurite. `make object-stores` runs it."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pytest
from benchmarks.peers.maven import CACHE
from pyarrow.fs import AzureFileSystem, FileSystem, GcsFileSystem
from tests.cli.braid import Braid
from tests.tables.filled import fill
from tests.tables.turned import expected_of, plan_of, rows_of, table_of, turn

from braidlog.model.errors import BrokerError
from braidlog.storage.log import Log, Topic
from braidlog.tables import catalog, turning
from braidlog.tables.files import TableIO
from braidlog.tables.plan import Plan, TablePlace
from braidlog.testing.server import hold_port
from braidlog.tools.backup.object_place import ObjectPlace

pytestmark = pytest.mark.skipif(
    os.environ.get("OBJECT_STORES") != "all", reason="builds two servers, for minutes: make object-stores"
)
GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
AZURITE = "azurite@3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""What Azurite's manual says that everybody has."""
CONTAINER = "lake"
BUILD_SECONDS_MAX = 1800
START_SECONDS_MAX = 120


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
        subprocess.run(words, check=True, timeout=BUILD_SECONDS_MAX, env=own)
        unfinished.rename(folder)
    return folder


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            assert process.poll() is None, log.read_text()
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            assert time.monotonic() < deadline, log.read_text()
        yield
    finally:
        process.kill()
        process.wait()


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
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            files.create_dir(CONTAINER)
        except (OSError, pa.ArrowException):
            assert time.monotonic() < deadline
        else:
            return


@pytest.fixture(scope="module", params=[google, azure], ids=["google", "azure"])
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
    turning._swept.clear()
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
    assert "no bucket 'nowhere'" in braid.fails(3, "backup", "list", kept.replace(f"//{CONTAINER}", "//nowhere"))
