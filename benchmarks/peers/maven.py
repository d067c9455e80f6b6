"""Jars of peers, from Maven Central: fetched once, kept in `.cache`.

Knows: how a pom becomes a folder of jars. Refuses to know: what they are for.
"""

import contextlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache"
DOWNLOAD_SECONDS_MAX = 600


def version(pom: Path, name: str) -> str:
    """The property `<name.version>` of a pom."""
    found = re.search(rf"<{name}\.version>(.*)</{name}\.version>", pom.read_text(encoding="utf-8"))
    assert found is not None, f"{pom.name} says which {name}"
    return found[1]


def jars(pom: Path, name: str) -> Path:
    """The folder with what the pom asks for and all that it needs."""
    folder = CACHE / f"{name}-{version(pom, name)}"
    if not folder.is_dir():
        CACHE.mkdir(exist_ok=True)
        fetched = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=CACHE))
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        subprocess.run([*command, f"-DoutputDirectory={fetched}"], check=True, timeout=DOWNLOAD_SECONDS_MAX)
        with contextlib.suppress(OSError):  # someone else was faster, and has the same jars
            fetched.rename(folder)
        shutil.rmtree(fetched, ignore_errors=True)
    return folder
