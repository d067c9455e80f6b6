"""Kafka's own command-line tools, one after the other in one Java process.

Knows: where their jars come from, how one is run and what it must say. Refuses to know: which broker answers.
"""

import base64
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks.peers import maven
from tests.debian import Missing, have
from tests.interop.kafka.clients import alone

FOLDER = Path(__file__).parents[1] / "tools"
PACKAGE = "org.apache.kafka.tools."
CONFIGS = "kafka.admin.ConfigCommand"


class Case(NamedTuple):
    tool: str
    arguments: str
    """With blanks between; words in capitals stand for an address or a file."""
    said: str
    """A pattern in what it writes."""
    code: int | None = 0
    """None: this one ends by an error of its own, in whatever way it is ended."""
    typed: str = ""


class Tools:
    """The Java process: one tool at a time."""

    def __init__(self, jars: Path, log: Path) -> None:
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [*command, str(FOLDER / "Tools.java")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def run(self, tool: str, arguments: list[str], typed: str) -> tuple[int, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        name = tool if tool == CONFIGS else PACKAGE + tool
        self._process.stdin.write("\t".join([base64.b64encode(typed.encode()).decode(), name, *arguments]) + "\n")
        self._process.stdin.flush()
        code, _, written = self._process.stdout.readline().rstrip("\n").partition("\t")
        return int(code), base64.b64decode(written).decode()

    def judge(self, case: Case, words: Mapping[str, str]) -> str:
        """What is wrong with the way in which it ended; empty if nothing is."""
        code, written = self.run(case.tool, [words.get(word, word) for word in case.arguments.split()], case.typed)
        if (case.code is None or code == case.code) and re.search(case.said, written, re.DOTALL):
            return ""
        return f"{case.tool} {case.arguments} ended with {code}: {written[:1000]}"

    def close(self) -> None:
        with self._process:  # closes what it was written to and read from
            self._process.kill()
        self._log.close()


def jars() -> Path:
    """Fetched once; the test is skipped where there is no Maven."""
    try:
        have("mvn", "maven")
    except Missing as reason:
        pytest.skip(str(reason))
    with alone("kafka-tools"):
        return maven.jars(FOLDER / "pom.xml", "kafka-tools")


@contextmanager
def started(log: Path) -> Iterator[Tools]:
    found = Tools(jars(), log)
    try:
        yield found
    finally:
        found.close()
