"""The commands in processes of their own: Ctrl-C and going on where it stopped, on one machine and on a cluster of Spark's."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.debian import have
from tests.spark.pipeline.cluster import StandaloneCluster
from tests.spark.pipeline.shop import Shop, expected, read_all
from tests.spark.pipeline.tables import rows_of

from braidlog.spark.pipeline.ledger import Ledger
from braidlog.spark.pipeline.project import open_project
from braidlog.spark.sessions import settings
from braidlog.testing.server import ServerProcess

SECONDS_MAX = 580
LOOK_SECONDS = 0.2
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
SMALL = ["--conf", "spark.driver.memory=1g"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    have("java", "openjdk-17-jre-headless")
    with ServerProcess(tmp_path_factory.mktemp("node") / "data") as found:
        yield found


def braid(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "braidlog.cli", *arguments]


def from_template(folder: Path, node: ServerProcess) -> Path:
    """What `init` writes, with the ports of this node."""
    subprocess.run(braid("pipeline", "init", str(folder)), capture_output=True, timeout=60, check=True)
    text = (folder / "pipeline.toml").read_text()
    changes = {
        'servers = "127.0.0.1:9092"': f'servers = "127.0.0.1:{node.ports["kafka"]}"',
        '# servers = "mayfly://127.0.0.1:7275"': f'servers = "mayfly://127.0.0.1:{node.ports["mayfly"]}"',
        'topics = ["shop"]': 'topics = ["orders"]',
        '# trigger = "10 seconds"': 'trigger = "200 milliseconds"',
        '# admin = "http://127.0.0.1:9644"': 'admin = ""',
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "pipeline.toml").write_text(text)
    return folder


def wait_until_told(project_folder: Path, stages: set[str], process: "subprocess.Popen[str]") -> None:
    """Until each of the stages has told of a batch with rows."""
    ledger = Ledger(open_project(project_folder).storage)
    deadline = time.monotonic() + SECONDS_MAX
    while {each.stage for each in ledger.batches() if each.rows} < stages:
        assert time.monotonic() < deadline, "no progress"
        try:
            process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"it ended by itself:\n{process.stderr.read() if process.stderr else ''}")


def test_stopped_here_and_finished_on_a_cluster(node: ServerProcess, tmp_path: Path) -> None:
    shop = Shop(node, seed=3)
    shop.send(100)
    folder = from_template(tmp_path / "shop", node)
    command = braid("pipeline", "run", str(folder), "--master", "local[2]", *SMALL)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            wait_until_told(folder, {"bronze", "silver", "silver-table"}, process)
            busy = subprocess.run(
                braid("pipeline", "backfill", str(folder), *SMALL),
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
            shop.send(50)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everyone in the foreground hears it
            _, said = process.communicate(timeout=SECONDS_MAX)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, said
    assert said.endswith("braid: stopped; the next run resumes where it stopped\n"), said
    assert "Traceback" not in said
    assert busy.returncode == 3
    assert "is in use: the pipeline is running" in busy.stderr

    shop.send(50)
    with StandaloneCluster(tmp_path, workers=2) as cluster:
        on_cluster = [
            *("--conf", "spark.executor.memory=512m"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
            # All of it is on this machine: see `settings` in braidlog.spark.sessions.
            *("--conf", f"{CHECKPOINTS}={settings('local')[CHECKPOINTS]}"),
        ]
        command = braid("pipeline", "run", "--once", str(folder), "--master", cluster.url, *SMALL, *on_cluster)
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        assert done.returncode == 0, done.stderr
        assert len({path.parent.parent for path in cluster.executors()}) == 2  # both workers had work
    assert "silver " in done.stderr  # plain lines of progress, where nobody watches
    assert "\x1b" not in done.stderr

    log = read_all(node, "orders")
    wanted = expected(log)
    project = open_project(folder)
    bronze = [(row.partition, row.offset, row.value) for row in rows_of(project, "bronze")]
    assert sorted(bronze, key=str) == sorted(((each.partition, each.offset, each.value) for each in log), key=str)
    names = [row._id for row in rows_of(project, "silver")]
    assert len(names) == len(set(names))
    assert set(names) == wanted.silver.keys()
    assert len(read_all(node, "shop.dead-letters")) == len(wanted.dead)

    told = subprocess.run(
        braid("pipeline", "status", str(folder), "-o", "json"), capture_output=True, text=True, timeout=60, check=True
    )
    stages = {each["stage"]: each for each in json.loads(told.stdout)["stages"]}
    assert {each["lag"] for each in stages.values()} == {0}
    shown = subprocess.run(
        braid("pipeline", "status", str(folder)), capture_output=True, text=True, timeout=60, check=True
    )
    assert shown.stdout.split()[:9] == ["STAGE", "GENERATION", "BATCH", "LAG", "IN", "OUT", "DEAD", "LATE", "ROWS/S"]
    violations = stages["silver"]["violations"]
    # What an interrupted batch has counted may be lost; it is never counted twice.
    assert 0 < violations["amount_not_negative"] <= wanted.negative
    assert violations["has_version"] == 0
    assert f"silver: amount_not_negative violated by {violations['amount_not_negative']} rows" in shown.stdout
    planned = subprocess.run(
        braid("pipeline", "replay", str(folder), "--from", "earliest", "--dry-run"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "table silver is rebuilt" in planned.stdout
    assert open_project(folder).storage.joinpath("generation.json").exists() is False


def test_flags_for_a_cluster_as_a_shell_passes_them(tmp_path: Path) -> None:
    submit = tmp_path / "spark-submit"
    submit.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    submit.chmod(0o755)
    command = f"{submit} $({shlex.join(braid('spark', 'submit-args'))} {{}}) job.py"

    def submitted(flags: str) -> list[str]:
        done = subprocess.run(
            ["sh", "-c", command.format(flags)], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
        )
        return done.stdout.splitlines()

    packed = submitted("--master yarn --archive env.tar.gz")
    assert packed[:4] == ["--master", "yarn", "--archives", "env.tar.gz#environment"]
    assert "spark.pyspark.python=./environment/bin/python" in packed
    assert submitted("")[:2] == ["--master", "local[*]"]
    assert submitted("--archive 'my env.tar.gz'") == ["job.py"], "a name that no shell can pass is refused"


def test_a_prompt_with_a_session() -> None:
    have("java", "openjdk-17-jre-headless")
    done = subprocess.run(
        braid("spark", "shell", "--master", "local[1]", *SMALL),
        input="print('rows:', spark.range(7).select(f.col('id')).count())\n",
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rows: 7" in done.stdout


def test_a_source_that_is_not_there_is_told_before_java_is_asked_for(node: ServerProcess, tmp_path: Path) -> None:
    """A Java that cannot be found is told of by whoever starts it."""
    folder = from_template(tmp_path / "shop", node)
    settings_file = folder / "pipeline.toml"
    there = settings_file.read_text()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        closed = f'"127.0.0.1:{bound.getsockname()[1]}"'
    address = f'"127.0.0.1:{node.ports["kafka"]}"'
    cases = [
        (there.replace('topics = ["orders"]', 'topics = ["nowhere"]'), 3, "no topic 'nowhere'"),
        (there.replace(address, closed), 5, closed.strip('"')),
    ]
    for text, code, said in cases:
        assert text != there
        settings_file.write_text(text)
        done = subprocess.run(
            braid("pipeline", "run", "--once", str(folder)),
            env={**os.environ, "JAVA_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert (done.returncode, said in done.stderr, "Java" in done.stderr) == (code, True, False), done.stderr
