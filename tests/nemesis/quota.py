"""Less processor time for some processes, by a cgroup of version 1 or 2, where this process may make one."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

PERIOD_US = 100_000
CGROUPS = Path("/sys/fs/cgroup")
REMOVAL_TRIES_MAX = 100


def _root() -> Path | None:
    """Where a group with a quota may be made."""
    if (CGROUPS / "cpu/cpu.shares").exists():
        return CGROUPS / "cpu"
    controllers = CGROUPS / "cgroup.subtree_control"
    return CGROUPS if controllers.exists() and "cpu" in controllers.read_text(encoding="ascii").split() else None


def with_children(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for child in (task / "children").read_text(encoding="ascii").split():
                yield from with_children(int(child))


@contextlib.contextmanager
def processor_quota(pids: Iterable[int], milliseconds: int) -> Iterator[None]:
    """Let the processes and their children have that much of each `PERIOD_US`, together. OSError where that is not allowed."""
    root = _root()
    if root is None:
        raise OSError("no cgroup with a quota of processor time")
    group = root / f"nemesis-{os.getpid()}"
    group.mkdir()
    pids = [each for pid in pids for each in with_children(pid)]
    try:
        quota = milliseconds * 1000
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}", encoding="ascii")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")
        _move(pids, group)
        yield
    finally:
        own = _own_group(root)
        _move(map(int, (group / "cgroup.procs").read_text(encoding="ascii").split()), own)
        for _ in range(REMOVAL_TRIES_MAX):  # a process that is just forked is moved the next time
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            _move(map(int, (group / "cgroup.procs").read_text(encoding="ascii").split()), own)


def _own_group(root: Path) -> Path:
    """The group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, names, path = line.split(":", 2)
        if "cpu" in names.split(",") or (not names and root == CGROUPS):
            return root / path.lstrip("/") if (root / path.lstrip("/")).exists() else root
    return root


def _move(pids: Iterable[int], group: Path) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
