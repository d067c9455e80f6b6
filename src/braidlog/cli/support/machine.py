"""Describe this machine: kernel, limits, memory, disks, versions of packages.

Reads no environment variables, no command lines and nothing about other users of the machine.
"""

import os
import platform
import resource
import shutil
from pathlib import Path
from typing import Any, Final

from braidlog.tools.doctor import installed_version

FILES: Final = (
    "version",
    "meminfo",
    "loadavg",
    "uptime",
    "stat",
    "diskstats",
    "pressure/cpu",
    "pressure/io",
    "pressure/memory",
    "sys/fs/file-nr",
    "sys/fs/file-max",
    "sys/net/core/somaxconn",
    "sys/vm/dirty_ratio",
    "sys/vm/dirty_background_ratio",
    "sys/vm/swappiness",
    "sys/vm/max_map_count",
)
PACKAGES: Final = (
    *(
        "braidlog",
        "click",
        "cramjam",
        "crc32c",
        "google-re2",
        "h11",
        "jinja2",
        "msgspec",
        "starlette",
        "uvicorn",
        "uvloop",
    ),
    *("pyarrow", "pyspark", "pandas", "deltalake", "obstore", "pyiceberg", "cryptography"),
)
BYTES_MAX: Final = 256 * 1024


def proc_files(folder: str = "/proc") -> dict[str, str]:
    """Return files of /proc by name; skip files that this kernel lacks."""
    found = {}
    for name in FILES:
        try:
            with open(f"{folder}/{name}", "rb") as file:
                found[name.replace("/", "-")] = file.read(BYTES_MAX).decode("utf-8", "backslashreplace")
        except OSError:
            continue
    return found


def limits_of(pid: int) -> str | None:
    """Return the limits of a local process; None if it does not exist or is not readable."""
    try:
        return Path(f"/proc/{pid}/limits").read_text(encoding="utf-8")
    except OSError:
        return None


def facts(folders: list[str]) -> dict[str, Any]:
    """Describe the machine, and the disks of those folders that exist on it."""
    return {
        "system": platform.uname()._asdict() | {"node": ""},
        "python": platform.python_version(),
        "libc": platform.libc_ver(),
        "processors": os.cpu_count(),
        "usable_processors": len(os.sched_getaffinity(0)),
        "open_files_limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "packages": {name: version for name in PACKAGES if (version := installed_version(name)) is not None},
        "disks": {folder: shutil.disk_usage(folder)._asdict() for folder in folders if Path(folder).is_dir()},
    }
