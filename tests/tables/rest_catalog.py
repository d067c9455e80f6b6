"""Iceberg's own REST catalog on loopback: a Java process, with its tables' metadata in the warehouse and its names in a file."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import pytest
from benchmarks.peers import maven
from tests.debian import Missing, have

from braidlog.testing.server import hold_port

POM = Path(__file__).parent / "rest" / "pom.xml"
MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
START_SECONDS_MAX = 300


@contextmanager
def rest_catalog(folder: Path, warehouse: str) -> Iterator[str]:
    """Its address."""
    try:
        have("mvn", "maven")
        have("java", "openjdk-17-jre-headless")
    except Missing as missing:
        pytest.skip(str(missing))
    jars = maven.jars(POM, "iceberg-rest")
    holder, port = hold_port()
    own = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_URI": f"jdbc:sqlite:{folder}/rest.db",
    }
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", MAIN]
    with (folder / "rest.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **own})
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, f"{url}/v1/config", folder / "rest.log")
        yield url
    finally:
        process.kill()
        process.wait()
        os.close(holder)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    direct = build_opener(ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        assert process.poll() is None, f"the catalog has ended:\n{log.read_text()}"
        try:
            with direct.open(url, timeout=5):
                return
        except (URLError, OSError):
            assert time.monotonic() < deadline, f"the catalog does not answer:\n{log.read_text()}"
