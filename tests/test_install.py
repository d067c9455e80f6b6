"""What `pip install` gives where there is no C compiler: of a wheel all, of the source a slower kernel and the same package; what
`make dev` needs and leaves; what is published, and under which version and licences."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from release.pythons import find
from release.try_installed import COMPILED as TRIED
from release.wheels import LICENCES, compiled_modules

import braidlog
from braidlog.wire.dialect import dialects

ROOT = Path(__file__).parent.parent
BUILD = ("setuptools>=77",)
COMPILED = compiled_modules((ROOT / "setup.py").read_text(encoding="utf-8"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


class Elsewhere:
    """The source without anything that was built of it, and a machine that has no compiler."""

    def __init__(self, folder: Path) -> None:
        self.source, self.site, nothing = folder / "source", folder / "site", folder / "nothing"
        built = shutil.ignore_patterns("*.so", "*.c", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT / "src", self.source / "src", ignore=built)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "MANIFEST.in"):
            shutil.copy(ROOT / name, self.source)
        nothing.mkdir()
        kept = {name: value for name, value in os.environ.items() if name not in ("CC", "BRAIDLOG_PURE")}
        self.environment = {**kept, "PATH": str(nothing), "PYTHONPATH": str(self.site)}

    def python(self, *arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env=self.environment, cwd=self.source, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pip(self, verb: str, *arguments: str) -> None:
        options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
        self.python("-m", "pip", verb, "--quiet", *options, *arguments)

    def install(self, what: Path) -> None:
        self.pip("install", "--no-compile", "--target", str(self.site), str(what))


def test_without_a_compiler_it_installs_in_pure_python(tmp_path: Path) -> None:
    machine = Elsewhere(tmp_path)
    machine.install(machine.source)
    assert "kernel pure Python" in machine.python("-m", "braidlog.cli", "--version")
    assert [path.name for path in machine.site.rglob("*") if path.suffix in (".c", ".so")] == []
    assert (machine.site / "braidlog/py.typed").exists()
    machine.environment["BRAIDLOG_PURE"] = "0"  # as for what is published
    with pytest.raises(AssertionError, match="No such file or directory"):
        machine.pip("wheel", "--wheel-dir", str(tmp_path), str(machine.source))


def test_a_wheel_needs_no_compiler(tmp_path: Path) -> None:
    """It carries what `make setup` has compiled: to compile that again would test the compiler."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    compiled = [file for name in COMPILED for file in (ROOT / "src" / name).parent.glob(f"{Path(name).name}{suffix}")]
    if len(compiled) < len(COMPILED):
        pytest.skip("this checkout is not compiled: no C compiler was found when it was set up")
    machine = Elsewhere(tmp_path)
    there = machine.source / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    later = (ROOT / "setup.py").stat().st_mtime + 10**8
    for file in compiled:
        copy = there / file.relative_to(ROOT / "src")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
        os.utime(copy, (later, later))
    machine.environment["BRAIDLOG_PURE"] = "0"
    machine.pip("wheel", "--wheel-dir", str(tmp_path), str(machine.source))
    (wheel,) = tmp_path.glob("*.whl")
    machine.install(wheel)
    assert len([*(machine.site / "braidlog").rglob("*.so")]) == len(COMPILED)
    assert "works on Python" in machine.python(str(ROOT / "release/try_installed.py"))
    info = machine.site / f"braidlog-{VERSION}.dist-info"
    assert {path.name for path in (info / "licenses").rglob("*") if path.is_file()} == set(LICENCES)


@pytest.mark.parametrize("name", ["python3.12", "python3.13"])
def test_it_works_on_the_other_pythons(name: str, tmp_path: Path) -> None:
    """In pure Python, for that takes no minute of compiling: `make pythons` runs a good part of the tests there, compiled."""
    python = find(name)
    if python is None:
        pytest.skip(f"{name} is not on this machine")
    machine, there = Elsewhere(tmp_path), tmp_path / "there"
    subprocess.run([python, "-m", "venv", "--without-pip", str(there)], check=True)
    only_wheels = ("--only-binary", ":all:", "--no-binary", "braidlog", "--disable-pip-version-check")
    environment = machine.environment | {"BRAIDLOG_PURE": "1", "PYTHONPATH": ""}
    mine = str(there / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", mine, "install", "--quiet", *only_wheels]
    said = ""
    for command in ([*pip, str(machine.source)], [mine, str(ROOT / "release" / "try_installed.py")]):
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
    assert f"works on Python {name.removeprefix('python')}." in said


def test_the_version_stands_in_one_place_and_its_changes_in_another() -> None:
    said = [line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert said[0].split()[1] == VERSION == braidlog.__version__


def test_what_others_made_is_named_with_its_licence() -> None:
    """Minified files of the console are what others made."""
    static = ROOT / "src/braidlog/console/static"
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for file in static.glob("*.min.*"):
        licence = f"{file.name.partition('.')[0]}.LICENSE.txt"
        assert any(file.name in line and licence in line for line in notice.splitlines()), file.name
        assert (static / licence).exists()
        assert licence in LICENCES


def test_compiled_modules_are_listed_alike() -> None:
    """In setup.py, in the script that tries what was installed, and by what they say of themselves in the Makefile."""
    assert [f"braidlog/{name.replace('.', '/')}" for name in TRIED] == COMPILED
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"{Path(name).name}.py" in makefile.partition("COMPILED :=")[2].partition("\n")[0] for name in COMPILED)


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
    assert "braidlog is ready, data in " in "".join(said), "".join(said)
    assert "Traceback" not in "".join(said)
    status = ["git", "-C", str(clone), "status", "--porcelain"]
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == ""
