"""One Spark for each pytest process: made when the first test asks for it, ended with its Java when the last has run."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests.debian import have

from braidlog.spark import session

END_SECONDS_MAX = 60


@pytest.fixture(scope="session", autouse=True)
def _small(spark_home: Path) -> None:
    """Every Spark of this folder."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    have("java", "openjdk-17-jre-headless")
    folder = tmp_path_factory.mktemp("spark")
    found = session(
        "tests",
        "local[2]",
        log_level="ERROR",
        **{
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={folder}",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder),
        },
    )
    yield found
    _end(found)


def _end(found: SparkSession) -> None:
    """Spark's own stop leaves the JVM and its sockets to the end of the process, which pytest rightly calls a leak."""
    gateway = SparkContext._gateway
    assert gateway is not None
    found.stop()
    process: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()  # Java ends when nobody holds the other end
    try:
        process.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_SECONDS_MAX)
    SparkContext._gateway = None
    SparkContext._jvm = None
