"""The session helper: what it sets, what it says when there is no Java."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braidlog.spark import JavaMissingError, session
from braidlog.spark.sessions import require_java, settings


def test_a_session_runs_this_python_in_utc(spark: SparkSession) -> None:
    def executable(_: int) -> str:
        return sys.executable

    assert session() is not None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert "FileSystemBased" in (spark.conf.get("spark.sql.streaming.checkpointFileManagerClass") or "")
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.sparkContext._jvm.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED is False  # type: ignore[union-attr]
    assert spark.sparkContext.parallelize([0], 1).map(executable).collect() == [sys.executable]


def test_a_cluster_keeps_its_own_addresses_and_checkpoints() -> None:
    assert "spark.driver.host" in settings("local[2]")
    assert not {"spark.driver.host", "spark.sql.streaming.checkpointFileManagerClass"} & set(settings("spark://m:7077"))


def test_executors_read_arrow_as_the_driver_does_unless_told() -> None:
    named = "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS"
    assert settings("spark://m:7077")[f"spark.executorEnv.{named}"] == "true"
    command = (
        "import os; from braidlog.spark import session; spark = session(log_level='ERROR', **{'spark.ui.enabled': 'false'}); "
        "print('checked', spark.sparkContext._jvm.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED)"
    )
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, named: "false"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "checked True" in done.stdout, done.stderr


def test_no_java_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match="Spark needs Java 17, but neither"):
        require_java()


def test_an_old_java_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match=r"1\.8\.0_402"):
        require_java()
