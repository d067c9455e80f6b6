"""A Spark session that works as it is: this Python, UTC, one machine unless told otherwise.

Knows: Spark's settings and where Java is. Refuses to know: sources, sinks, queries.
Imports pyspark only when called: it is an extra (`pip install braidlog[spark]`).
Invariant: what the caller sets, wins.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_UNCHECKED_ARROW = "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS"
"""Arrow's Java looks at the bounds of every value that it reads: a tenth of what tasks take to make rows of a topic. What is
read are batches that Python workers of the same job have written, by row numbers below their count
(docs/performance-tried.md)."""
_MEMORY_SHARE, _MEMORY_MB_MIN, _MEMORY_MB_MAX = 4, 1024, 8192


class JavaMissingError(RuntimeError):
    """Spark runs on Java, and there is none, or one too old."""


def session(
    name: str = "braidlog", master: str = "local[*]", *, log_level: str = "WARN", **conf: str | int
) -> "SparkSession":
    """The Spark session, made if there is none. `conf`: settings of Spark's, as in `**{"spark.ui.enabled": "false"}`."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra, and heavy
    except ImportError as error:
        words = "pyspark is not installed: pip install 'braidlog[spark]'"
        raise ModuleNotFoundError(words, name="pyspark") from error
    require_java()
    # Workers would otherwise take the `python3` of the PATH, which may know neither pyarrow nor braidlog.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault(_UNCHECKED_ARROW, "true")
    if master.startswith("local"):
        os.environ.setdefault(
            "SPARK_LOCAL_IP", "127.0.0.1"
        )  # or Spark wonders aloud which of the machine's addresses to take
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**settings(master), "spark.log.level": log_level, **conf}.items():
        builder = builder.config(key, str(value))
    return builder.getOrCreate()


def settings(master: str) -> dict[str, str]:
    """What this package sets for a master; a caller's own settings go over it."""
    found = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Over TCP the second of two small writes to a worker waits 40 ms for the kernel's acknowledgement of the first (Nagle's
        # algorithm and a delayed one): in every task, and so in every trigger.
        "spark.python.unix.domain.socket.enabled": "true",
        f"spark.executorEnv.{_UNCHECKED_ARROW}": "true",
    }
    if master.startswith("local"):
        found |= {
            # Nobody else has to reach a driver whose executors are its own threads.
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": f"{_memory_mb()}m",
            # Checkpoints are local files then, and the default manager starts a process for each: half of a trigger's time.
            "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        }
    return found


def _memory_mb() -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return max(_MEMORY_MB_MIN, min(machine // _MEMORY_SHARE, _MEMORY_MB_MAX))


def require_java() -> None:
    """See that there is a Java that Spark runs on; say how to get one if not."""
    java = find_java()
    if java is None:
        raise JavaMissingError(
            f"Spark needs Java {JAVA_MIN}, and there is none: neither JAVA_HOME nor the PATH has one. "
            f"Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless"
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr  # noqa: S603
    found = re.search(r'version "(?:1\.)?([0-9]+)', said)
    if found is None or int(found[1]) < JAVA_MIN:
        raise JavaMissingError(f"Spark needs Java {JAVA_MIN} or newer; {java} says: {said.strip()[:200]}")


def find_java() -> str | None:
    """As Spark's own start script looks for it: JAVA_HOME first, then the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if java.is_file() else None
    return shutil.which("java")
