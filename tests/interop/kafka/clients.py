"""The foreign clients: how each one's checks are named and run, and what it needs to be there.

`DEVIATIONS` is every check braidlog is known to answer otherwise than Apache Kafka, with the reason. A check that begins to pass
fails its test until its row is gone.
"""

import fcntl
import importlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.debian import have
from tests.interop.kafka.checking import named
from tests.interop.kafka.servers import run_quietly

JAVA = Path(__file__).parents[1] / "java"
CACHE = Path(__file__).parents[3] / ".cache"
JAVA_CHECK = re.compile(r"^\s*static void check(\w+)\(", re.MULTILINE)
BUILD_SECONDS_MAX = 600
DOWNLOAD_SECONDS_MAX = 300
RUN_SECONDS_MAX = 400

DEVIATIONS: dict[tuple[str, str], str] = {}


class Client(NamedTuple):
    name: str
    checks: list[str]
    command: Callable[[], list[str]]
    """What to run; builds or installs what is missing. The servers' words and `-` are added to it."""


def _python(name: str) -> Client:
    module = f"tests.interop.kafka.check_{name}"
    return Client(name, list(named(vars(importlib.import_module(module)))), lambda: [sys.executable, "-m", module])


def _kcat() -> Client:
    client = _python("kcat")

    def command() -> list[str]:
        have("kcat", "kcat")
        return client.command()

    return client._replace(command=command)


@contextmanager
def alone(name: str) -> Iterator[None]:
    """One worker at a time: what the first has made the others find."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def source_of(package: str, version: str) -> Path:
    """The unpacked source distribution of a Python package, fetched once. One worker at a time."""
    folder = CACHE / f"{package.replace('-', '_')}-{version}"
    with alone(folder.name):
        if not folder.is_dir():
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
            with tempfile.TemporaryDirectory(dir=CACHE) as fetched:
                run_quietly([*command, "--dest", fetched, f"{package}=={version}"], DOWNLOAD_SECONDS_MAX)
                with tarfile.open(next(Path(fetched).glob("*.tar.gz"))) as archive:
                    archive.extractall(fetched, filter="data")
                (Path(fetched) / folder.name).rename(folder)
    return folder


def own_tests(folder: Path, files: Sequence[str], report: Path, **settings: str) -> dict[str, str]:
    """Run a client's own tests; test → "" if it passed or was skipped by itself, else why not."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    plugins = [
        word for plugin in ("cacheprovider", "xdist", "braidlog", "hypothesispytest") for word in ("-p", f"no:{plugin}")
    ]
    command = [sys.executable, "-W", "ignore", "-m", "pytest", *plugins, "-o", "addopts=", "-o", "log_level=WARNING"]
    done = subprocess.run(
        [*command, "--tb=short", "-q", f"--junitxml={report}", *files],
        cwd=folder,
        env={**clean, **settings},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert report.exists(), f"its tests did not run:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        faults = [fault.text or "" for kind in ("failure", "error") for fault in case.findall(kind)]
        outcomes[case.attrib["name"]] = "\n".join(faults)[-1500:]
    return outcomes


def _java() -> Client:
    source = (JAVA / "src/main/java/Checks.java").read_text(encoding="utf-8")
    snake = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in JAVA_CHECK.findall(source)]
    return Client("java", snake, java_command)


def is_built(target: Path, newest: float) -> bool:
    """Whether all that Maven makes is there, and no older than its sources: the stamp alone may outlive it."""
    stamp = target / "built"
    found = (any((target / "classes").glob("*.class")), any((target / "lib").glob("*.jar")))
    return all(found) and stamp.exists() and stamp.stat().st_mtime >= newest


@cache
def java_command() -> list[str]:
    """Compile what has changed: Maven brings the client's jars beside the classes. One worker at a time."""
    have("mvn", "maven")
    target = JAVA / "target"
    with alone("java"):
        newest = max(file.stat().st_mtime for file in (JAVA / "pom.xml", *JAVA.glob("src/**/*.java")))
        if not is_built(target, newest):
            run_quietly(["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), "package"], BUILD_SECONDS_MAX)
            (target / "built").touch()
            assert is_built(target, newest), f"Maven has left no classes or no jars in {target}"
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{target}/classes:{target}/lib/*", "Checks"]


CLIENTS = {
    client.name: client
    for client in (_python("confluent"), _python("kafka_python"), _python("aiokafka"), _kcat(), _java())
}
