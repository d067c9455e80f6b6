"""`make image`: an image with a node, by Debian's buildah; nothing is fetched while it is built but wheels, before.

    python -m release.image                                              over a small Debian, made here by debootstrap
    python -m release.image --etcd                                       with Debian's etcd, for nodes with a member of their own
    python -m release.image --base docker.io/library/python:3.13-slim --python 3.13

Knows: what the Containerfile wants beside it, how a base is made where none can be had. Refuses to know: what is in the image.
Root is needed for debootstrap. The image is tried before it is called done: a node in it, as the user it names, takes and gives
a record, and `braid health` says that it is ready.
"""

import argparse
import shutil
import sys
import tomllib
from typing import Final

import click

from release.wheels import ROOT, UnfitError, build, run, source_archive

BASE: Final = "localhost/braidlog-base"
PACKAGES: Final = ("python3", "python3-venv", "ca-certificates")
FOLDER: Final = ROOT / "build" / "image"
TARGET: Final = "manylinux_2_17_x86_64"
PLATFORMS: Final = (TARGET, "manylinux2014_x86_64", "manylinux_2_28_x86_64")
LEFT_OUT: Final = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/lib/apt/lists",
    "var/cache",
    "var/log",
)
BUILDAH: Final = ("buildah", "--storage-driver", "vfs")
"""Slower than overlay, and there wherever a folder is."""


def programs() -> None:
    for program in ("buildah", "debootstrap"):
        if not shutil.which(program):
            raise UnfitError(f"{program} is not here: apt-get install {program}")


def base(more: tuple[str, ...]) -> str:
    """A Debian with Python and `more`, as an image."""
    root, image = FOLDER / "-".join(("base", *more)), "-".join((BASE, *more))
    if not (root / "usr/bin/python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        packages = ",".join((*PACKAGES, *more))
        run(["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root])
        for each in LEFT_OUT:
            shutil.rmtree(root / each, ignore_errors=True)
            (root / each).mkdir(parents=True)
    container = run([*BUILDAH, "from", "scratch"]).split()[-1]
    run([*BUILDAH, "add", container, root, "/"])
    run([*BUILDAH, "commit", "--rm", container, image])
    return image


def gather(python: str) -> None:
    """The package's wheel and those of all it needs, for the base's Python."""
    wheels = FOLDER / "context" / "wheels"
    shutil.rmtree(wheels.parent, ignore_errors=True)
    wheels.mkdir(parents=True)
    made = build(source_archive(wheels), f"python{python}", TARGET, wheels)
    for each in wheels.glob("*.tar.gz"):
        each.unlink()
    platforms = [word for each in PLATFORMS for word in ("--platform", each)]
    kind = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    run([sys.executable, "-m", "pip", "download", "--quiet", *kind, *platforms, "--dest", wheels, f"{made}[cluster]"])


def tried(image: str) -> str:
    """The node of the image, as the user it names, in a folder of its own."""
    container = run([*BUILDAH, "from", image]).split()[-1]
    inside = """
test "$(id -u)" = 10001
braid --version
braid serve --data-dir /data >/tmp/said &
until braid health --quiet --timeout 5; do test -d /proc/$! || exit 1; done
braid topic create orders
echo 'one book' | braid produce orders
braid consume orders
braid health --timeout 5
kill $!
wait $!
"""
    try:
        return run([*BUILDAH, "run", "--isolation", "chroot", container, "--", "sh", "-e", "-c", inside])
    finally:
        run([*BUILDAH, "rm", container])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--base", help="an image with Python; default: a small Debian made here")
    asked.add_argument("--etcd", action="store_true", help="etcd-server in the Debian made here")
    asked.add_argument("--python", default="3.11", help="of the base; default: 3.11")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    asked.add_argument("--tag", default=f"braidlog:{version}")
    chosen = asked.parse_args()
    programs()
    gather(chosen.python)
    over = chosen.base or base(("etcd-server",) if chosen.etcd else ())
    run(
        [
            *(*BUILDAH, "bud", "--isolation", "chroot", "--format", "docker", "--layers=false"),
            *("--build-arg", f"BASE={over}", "--file", ROOT / "release" / "Containerfile", "--tag", chosen.tag),
            FOLDER / "context",
        ]
    )
    click.echo(tried(chosen.tag))
    size = run([*BUILDAH, "images", "--format", "{{.Size}}", chosen.tag]).strip()
    click.echo(f"{chosen.tag}: {size}; buildah --storage-driver vfs push {chosen.tag} REGISTRY")


if __name__ == "__main__":
    main()
