"""`make wheels`: a source archive, and wheels for every Python, processor and C library that is promised, on one machine.

    python -m release.wheels dist                       all of them
    python -m release.wheels dist --python python3.13 --target musllinux_1_2_aarch64

Knows: how setup.py is run with Zig as its compiler, which compiles for any of them; what is in a wheel that can be published.
Refuses to know: how the release workflow does it (cibuildwheel, in pyproject.toml), where wheels go.
Invariants: all wheels are built from the source archive; what does not compile fails; every module that setup.py compiles is in
every wheel, for its processor, with no library but C's; that glibc 2.17 is enough for it is for auditwheel to say.

Headers are those of the Pythons on this machine. They are the same on 64-bit Linux whatever the processor and C library: sizes
and alignments in pyconfig.h are equal there, and compiled kernels use nothing else of it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import click

from release.pythons import find

ROOT = Path(__file__).resolve().parents[1]
PYTHONS: Final = ("python3.11", "python3.12", "python3.13")
LICENCES: Final = ("LICENSE", "NOTICE", "htmx.LICENSE.txt", "pico.LICENSE.txt", "uplot.LICENSE.txt")
GLIBC_MINOR: Final = 17


class Target(NamedTuple):
    zig: str
    machine: str
    """As ELF files name it."""
    libc: str
    """The one library that its modules need."""


TARGETS: Final = {
    "manylinux_2_17_x86_64": Target("x86_64-linux-gnu.2.17", "EM_X86_64", "libc.so.6"),
    "manylinux_2_17_aarch64": Target("aarch64-linux-gnu.2.17", "EM_AARCH64", "libc.so.6"),
    "musllinux_1_2_x86_64": Target("x86_64-linux-musl", "EM_X86_64", "libc.so"),
    "musllinux_1_2_aarch64": Target("aarch64-linux-musl", "EM_AARCH64", "libc.so"),
}


class UnfitError(Exception):
    """A wheel that must not be published."""


def run(command: Sequence[str | Path], environment: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """What it prints; shown, and the end, if it fails."""
    done = subprocess.run(  # noqa: S603 - programs of this environment
        [str(each) for each in command],
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnfitError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-6000:]}")
    return done.stdout


def compiled_modules(source: str) -> list[str]:
    """The files that setup.py compiles, as it lists them, without their suffix."""
    listed = source.partition("COMPILED = (")[2].partition(")")[0]
    return [f"braidlog/{name.strip().strip(',').strip(chr(34)).replace('.', '/')}" for name in listed.split()]


def source_archive(out: Path) -> Path:
    run([sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT])
    (made,) = out.glob("*.tar.gz")
    return made


def build(archive: Path, python: str, tag: str, out: Path) -> Path:
    """One wheel; a folder of its own for each, so that nothing compiled for another is taken for this one's."""
    target = TARGETS[tag]
    import ziglang  # noqa: PLC0415 - a compiler, for who builds

    zig = f"{Path(ziglang.__file__).parent / 'zig'} cc -target {target.zig}"
    version = python.removeprefix("python").replace(".", "")
    processor, system, libc = target.zig.partition(".")[0].split("-")
    environment = {
        "BRAIDLOG_PURE": "0",
        "CC": zig,
        "LDSHARED": f"{zig} -shared -s",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version}-{processor}-{system}-{libc}.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
    }
    with tempfile.TemporaryDirectory() as folder:
        named = f"--config-settings=--build-option=--plat-name={tag}"
        run(
            [find(python) or python, "-m", "pip", "wheel", "--no-deps", named, "--wheel-dir", folder, archive],
            environment,
        )
        (made,) = Path(folder).glob("*.whl")
        check(made, tag)
        return Path(shutil.move(made, out / made.name))


def modules(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as opened:
        for name in opened.namelist():
            if name.endswith(".so"):
                yield name, opened.read(name)


def check(wheel: Path, tag: str) -> None:
    """It has all that it must have, compiled for what its name says."""
    from elftools.elf.dynamic import DynamicSection  # noqa: PLC0415 - of auditwheel
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    target, found = TARGETS[tag], set()
    for name, data in modules(wheel):
        found.add(name.partition(".")[0])
        file = ELFFile(BytesIO(data))
        if file["e_machine"] != target.machine:
            raise UnfitError(f"{wheel.name}: {name} is for {file['e_machine']}, not {target.machine}")
        needed: set[str] = {
            cast("Any", entry).needed  # the tag's name makes the attribute
            for section in file.iter_sections()
            if isinstance(section, DynamicSection)
            for entry in section.iter_tags("DT_NEEDED")
        }
        if needed != {target.libc}:
            raise UnfitError(f"{wheel.name}: {name} needs {sorted(needed)}, not {target.libc} alone")
    wanted = set(compiled_modules((ROOT / "setup.py").read_text(encoding="utf-8")))
    if found != wanted:
        raise UnfitError(f"{wheel.name}: compiled are {sorted(found)}, not {sorted(wanted)}")
    with zipfile.ZipFile(wheel) as opened:
        names = [name for name in opened.namelist() if not name.endswith("/")]
    licences = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    if licences != set(LICENCES):
        raise UnfitError(f"{wheel.name}: has the licences {sorted(licences)}, not {sorted(LICENCES)}")
    if tag.startswith("manylinux"):
        judged = run([sys.executable, "-m", "auditwheel", "show", wheel])
        fits = re.search(r'platform tag: "(manylinux_2_(\d+)_\w+)"', " ".join(judged.split()))
        if fits is None or int(fits[2]) > GLIBC_MINOR:
            raise UnfitError(f"{wheel.name}: glibc 2.{GLIBC_MINOR} is not enough:\n{judged}")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("out", type=Path)
    asked.add_argument("--python", action="append", help=f"default: those that are here of {', '.join(PYTHONS)}")
    asked.add_argument("--target", action="append", choices=TARGETS)
    chosen = asked.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    for old in (*chosen.out.glob("braidlog-*.whl"), *chosen.out.glob("braidlog-*.tar.gz")):
        old.unlink()
    missing = [each for each in PYTHONS if find(each) is None]
    if missing and not chosen.python:
        click.echo(f"not on this machine, so no wheels for them: {', '.join(missing)}")
    made = [source_archive(chosen.out)]
    for python in chosen.python or [each for each in PYTHONS if each not in missing]:
        for tag in chosen.target or TARGETS:
            made.append(build(made[0], python, tag, chosen.out))
            click.echo(f"{made[-1].name}: {made[-1].stat().st_size // 1024} KiB")
    click.echo(run([sys.executable, "-m", "twine", "check", "--strict", *made]))


if __name__ == "__main__":
    main()
