"""Creates a Spark session that works without further settings: this Python, UTC, local unless another master is given.

Settings of the caller take precedence. Imports pyspark only when called: it is an extra (`pip install
braidlog[spark]`).
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
"""Arrow's Java checks the bounds of every value that it reads: a tenth of the time in which tasks make rows of a
topic. It reads only batches that Python workers of the same job have written, by row numbers below their count
(docs/performance-tried.md)."""
_MEMORY_SHARE, _MEMORY_MB_MIN, _MEMORY_MB_MAX = 4, 1024, 8192


class JavaMissingError(RuntimeError):
    """Spark needs Java, but there is none, or it is too old."""


def session(
    name: str = "braidlog", master: str = "local[*]", *, log_level: str = "WARN", **conf: str | int
) -> "SparkSession":
    """Return the Spark session; create it if there is none. `conf`: Spark settings, as in `**{"spark.ui.enabled":
    "false"}`."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra, and heavy
    except ImportError as error:
        words = "pyspark is not installed: pip install 'braidlog[spark]'"
        raise ModuleNotFoundError(words, name="pyspark") from error
    require_java()
    # Otherwise workers would use the `python3` of the PATH, which may have neither pyarrow nor braidlog.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault(_UNCHECKED_ARROW, "true")
    if master.startswith("local"):
        os.environ.setdefault(
            "SPARK_LOCAL_IP", "127.0.0.1"
        )  # otherwise Spark logs a warning about the choice of the machine's address
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**settings(master), "spark.log.level": log_level, **conf}.items():
        builder = builder.config(key, str(value))
    return builder.getOrCreate()


def settings(master: str) -> dict[str, str]:
    """Return this package's settings for a master; the caller's settings override them."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Over TCP the second of two small writes to a worker waits 40 ms for the kernel's acknowledgement of the
        # first (Nagle's algorithm and a delayed ACK), in every task and so in every trigger.
        "spark.python.unix.domain.socket.enabled": "true",
        f"spark.executorEnv.{_UNCHECKED_ARROW}": "true",
    }
    if master.startswith("local"):
        conf |= {
            # Only threads of the driver itself connect to it.
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": f"{_memory_mb()}m",
            # Checkpoints are local files then, and the default manager starts a process for each, which takes half of
            # a trigger's time.
            "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        }
    return conf


def _memory_mb() -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return max(_MEMORY_MB_MIN, min(machine // _MEMORY_SHARE, _MEMORY_MB_MAX))


def require_java() -> None:
    """Check that a suitable Java exists; otherwise raise with instructions."""
    java = find_java()
    if java is None:
        raise JavaMissingError(
            f"Spark needs Java {JAVA_MIN}, but neither JAVA_HOME nor the PATH has one. "
            f"Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless"
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr  # noqa: S603
    version = re.search(r'version "(?:1\.)?([0-9]+)', said)
    if version is None or int(version[1]) < JAVA_MIN:
        raise JavaMissingError(f"Spark needs Java {JAVA_MIN} or newer; {java} reports: {said.strip()[:200]}")


def find_java() -> str | None:
    """Find Java as Spark's own start script does: JAVA_HOME first, then the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if java.is_file() else None
    return shutil.which("java")
