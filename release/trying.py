"""Install each wheel where nothing else is, as a stranger would, and use it: `python -m release.trying dist`.

Knows: which wheels run on this machine, and what runs the others. Refuses to know: what "works" is (`try_installed.py`).
Invariant: what was not run is said, with the reason.

| wheel | where it is tried |
|---|---|
| manylinux, x86-64 | a new environment of its Python, with no program on the path: no compiler |
| manylinux, aarch64, Python 3.11 | Debian's Python for arm64, run by Debian's qemu-user-static; root |
| the others | not run: read only, when they were built |
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from release.pythons import find
from release.wheels import ROOT, UnfitError, run

SCRIPT: Final = ROOT / "release" / "try_installed.py"
ARM: Final = ROOT / "build" / "arm64"
QEMU: Final = "qemu-aarch64-static"
ONLY_WHEELS: Final = ("--quiet", "--only-binary", ":all:", "--disable-pip-version-check")


def python_of(wheel: Path) -> str:
    """`braidlog-1.0-cp311-cp311-….whl` → python3.11"""
    tag = wheel.name.split("-")[2]
    return f"python{tag[2]}.{tag[3:]}"


def native(wheel: Path) -> str:
    python = find(python_of(wheel))
    if python is None:
        return f"not run: {python_of(wheel)} is not here"
    with tempfile.TemporaryDirectory() as folder:
        environment, nothing = Path(folder) / "environment", Path(folder) / "nothing"
        nothing.mkdir()
        run([python, "-m", "venv", environment])
        mine, bare = environment / "bin" / "python", {"PATH": str(nothing), "CC": "/nonexistent/cc"}
        run([mine, "-m", "pip", "install", *ONLY_WHEELS, wheel], bare)
        return run([mine, SCRIPT], bare, Path(folder)).strip()


def arm(wheel: Path) -> str:
    if python_of(wheel) != "python3.11":
        return "not run: Debian's Python for arm64 is 3.11"
    for program, package in ((QEMU, "qemu-user-static"), ("debootstrap", "debootstrap")):
        if not shutil.which(program):
            return f"not run: {program} is not here: apt-get install {package}"
    if os.geteuid() != 0:
        return "not run: only root can change the root folder"
    if not (ARM / "usr/bin/python3.11").exists():
        shutil.rmtree(ARM, ignore_errors=True)
        wanted = ("--variant=minbase", "--include=python3,ca-certificates", "--arch=arm64", "--foreign")
        run(["debootstrap", *wanted, "bookworm", ARM])
        for archive in sorted((ARM / "var/cache/apt/archives").glob("*.deb")):
            run(["dpkg-deb", "--extract", archive, ARM])
        shutil.copy(str(shutil.which(QEMU)), ARM / QEMU)
    site = ARM / "site"
    shutil.rmtree(site, ignore_errors=True)
    platforms = [f"--platform={each}_aarch64" for each in ("manylinux_2_17", "manylinux2014", "manylinux_2_28")]
    kind = ("--python-version=3.11", "--implementation=cp", *platforms, "--target", str(site))
    run([sys.executable, "-m", "pip", "install", *ONLY_WHEELS, *kind, wheel])
    shutil.copy(SCRIPT, site)
    emulated = (f"/{QEMU}", "-E", "PYTHONPATH=/site")
    return run(["chroot", ARM, *emulated, "/usr/bin/python3.11", "/site/try_installed.py", *emulated]).strip()


def tried(wheel: Path) -> str:
    if "musllinux" in wheel.name:
        return "not run: no Python for musl is here"
    return arm(wheel) if "aarch64" in wheel.name else native(wheel)


def main() -> None:
    wheels = sorted(Path(sys.argv[1]).glob("braidlog-*.whl"))
    if not wheels:
        raise UnfitError(f"no wheels in {sys.argv[1]}: python -m release.wheels {sys.argv[1]}")
    for wheel in wheels:
        click.echo(f"{wheel.name}: {tried(wheel)}")


if __name__ == "__main__":
    main()
