"""What `pip install` gives where there is no C compiler: a slower kernel, and the same package."""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import braidlog

ROOT = Path(__file__).parent.parent


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
