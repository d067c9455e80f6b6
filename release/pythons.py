"""Where the Pythons of this machine are: on the path, or among those that pyenv keeps.

python -m release.pythons python3.12 python3.13     the place of each; its name alone, if it is not here
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def runs(python: str) -> bool:
    """Whether it is more than a name (pyenv has some that say only what to install)."""
    command = [python, "-c", "pass"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 - a Python of this machine


def find(name: str) -> str | None:
    """`python3.13` → where it is; None if it is not on this machine."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    others = sorted(kept.glob(f"{name.removeprefix('python')}.*/bin/{name}"))
    places = [shutil.which(name), *map(str, others)]
    return next((place for place in places if place is not None and runs(place)), None)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{find(name) or name}\n" for name in sys.argv[1:]))
