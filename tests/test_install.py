"""What `pip install` gives where there is no C compiler: a slower kernel, the same package; what `make dev` needs and leaves."""

import os
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import braidlog
from braidlog.wire.dialect import dialects

ROOT = Path(__file__).parent.parent
BUILD = ("setuptools>=77",)


def test_without_a_compiler_it_installs_in_pure_python(tmp_path: Path) -> None:
    source, site, nothing = tmp_path / "source", tmp_path / "site", tmp_path / "nothing"
    built = shutil.ignore_patterns("*.so", "*.c", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", source / "src", ignore=built)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    nothing.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "BRAIDLOG_PURE")}
    environment |= {"PATH": str(nothing), "PYTHONPATH": str(site)}

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=source, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    options = ("--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--disable-pip-version-check")
    python("-m", "pip", "install", "--quiet", *options, "--target", str(site), str(source))
    assert "kernel pure Python" in python("-m", "braidlog.cli", "--version")
    assert [path.name for path in site.rglob("*") if path.suffix in (".c", ".so")] == []
    assert (site / "braidlog/py.typed").exists()


def test_dir_shows_what_is_exported() -> None:
    assert set(braidlog.__all__) <= set(dir(braidlog))


def test_the_faster_loop_is_part_of_every_install_on_linux() -> None:
    needed = [each for each in metadata.requires("braidlog") or () if each.startswith("uvloop")]
    assert len(needed) == 1
    assert "extra" not in needed[0]


def needed(wanted: list[str]) -> set[str]:
    """These distributions and what they need, by name."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in wanted]
    while waiting:
        each = waiting.pop()
        if each.name.lower() not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
            found.add(each.name.lower())
            waiting += [Requirement(more) for more in metadata.requires(each.name) or ()]
    return found


def only(names: set[str], site: Path) -> None:
    """A folder with these distributions of this environment, and no others."""
    site.mkdir()
    for name in names:
        for file in metadata.files(name) or ():
            top = file.parts[0]
            place = Path(str(metadata.distribution(name).locate_file(top)))
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(place)


def test_make_dev_installs_what_running_needs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """In a clone of its own, where nothing can be had but what the package says that it needs: all else is missing."""
    clone, site = tmp_path / "clone", tmp_path / "site"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    mine = [each for each in metadata.requires("braidlog") or () if "extra ==" not in each]
    only(needed([*mine, *BUILD]), site)
    assert not (site / "pytest").exists()
    told = {"BRAIDLOG_PURE": "1", "PYTHONPATH": str(site), "PYTHON": sys.executable}
    told |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    told |= {f"BRAID_LISTENERS__{name.upper()}__PORT": "0" for name in dialects()}
    told |= {"BRAID_ADMIN__PORT": "0", "BRAID_REGISTRY__PORT": "0"}
    with subprocess.Popen(
        ["make", "dev"],
        cwd=clone,
        env={**os.environ, **told},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "Ctrl-C" in line:
                os.killpg(process.pid, signal.SIGINT)
    assert "braidlog is ready; its data is in " in "".join(said), "".join(said)
    assert "Traceback" not in "".join(said)
    status = ["git", "-C", str(clone), "status", "--porcelain"]
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == ""
