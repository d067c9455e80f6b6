"""Checks of a machine and its data folder, each with a finding and a remedy.

A check leaves no changes behind. What cannot be determined is a warning. `fail`: keeps a node from working; `warn`:
affects only some uses, or performance.
"""

import os
import re
import resource
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib import metadata
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Final

import msgspec

from braidlog.model.errors import BrokerError, StorageFault
from braidlog.storage.files import OsDisk, join
from braidlog.storage.folder.quarantine import Quarantined, find_quarantined
from braidlog.storage.segment.segment_files import DAMAGED
from braidlog.tools.findings import Severity
from braidlog.tools.inspect import segment_bytes
from braidlog.tools.layout import Layout, TopicPlace

PYTHON_MIN: Final = (3, 11)
JAVA: Final = (17, 21)
"""Java versions that Spark 4 supports."""
FSYNCS: Final = 20
FSYNC_SLOW_SECONDS: Final = 0.05
FREE_BYTES_WARN, FREE_BYTES_FAIL = 5 * 1000**3, 200 * 1000**2
FILES_WARN: Final = 4096
CLOCK_YEAR_MIN: Final = 2024
PROBE_SECONDS: Final = 1.0
READ_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Bytes to read of all partitions: some seconds at 200 MB/s, less than a second from the page cache."""
PARTITION_COST_BYTES: Final = 64 * 1024
"""Cost of a partition in addition to its bytes, for opening its files."""
NAMED_MAX: Final = 5
"""Maximum number of damaged partitions that are listed."""
PACKAGES: Final = (
    ("pyspark", "spark", (4, 2), (5,)),
    ("pyarrow", "spark", (18,), None),
    ("pandas", "spark", (2, 2), (3,)),
    ("deltalake", "lake", (1, 2), None),
    ("pyiceberg", "lake", (0, 10), None),
)
"""Name, extra that installs it, first supported version, first unsupported version."""


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """Line of `braid doctor`. `remedy` is empty if there is nothing to do."""

    check: str
    status: Status
    detail: str
    remedy: str = ""


def examine(data_dir: str, ports: Mapping[str, int]) -> Iterator[Finding]:
    """Yield the findings of all checks. `ports`: the ports of a node by setting."""
    yield _python()
    yield _kernel()
    yield _loop()
    yield from _disk(Path(data_dir))
    yield from _partitions(data_dir)
    for setting, port in ports.items():
        yield _port(setting, port)
    yield _files()
    yield _clock()
    yield _java()
    for package, extra, first, beyond in PACKAGES:
        yield _package(package, extra, first, beyond)


# -- the program -----------------------------------------------------------------------------------------------------


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_MIN:
        return Finding("python", Status.FAIL, version, f"install Python {'.'.join(map(str, PYTHON_MIN))} or newer")
    return Finding("python", Status.OK, version)


def _kernel() -> Finding:
    from braidlog.codec import is_compiled  # noqa: PLC0415 - the subject of the check

    if is_compiled():
        return Finding("kernel", Status.OK, "compiled")
    remedy = "install a C compiler and run: pip install --force-reinstall --no-binary braidlog braidlog"
    return Finding("kernel", Status.WARN, "pure Python: correct, but several times slower", remedy)


def _loop() -> Finding:
    version = installed_version("uvloop")
    if version is None:
        return Finding("uvloop", Status.WARN, "not installed: using asyncio's own event loop", "pip install uvloop")
    return Finding("uvloop", Status.OK, version)


# -- the cluster -----------------------------------------------------------------------------------------------------


def etcd_findings(members: Sequence[tuple[int, str, str, str]]) -> Iterator[Finding]:
    """Yield findings about the members of etcd, given as number, name, URL and problem."""
    for number, name, url, trouble in members:
        if trouble:
            remedy = f"start its node again; if the node is lost: etcdctl member remove {number:x}"
            yield Finding("etcd", Status.WARN, f"member {name or f'{number:x}'} {url} {trouble}", remedy)
    healthy, majority = sum(not trouble for *_, trouble in members), len(members) // 2 + 1
    detail = f"{healthy} of {len(members)} members are healthy, {majority} required"
    if healthy < majority:
        yield Finding("etcd", Status.FAIL, f"{detail}: the metadata is read-only", "start the members that are down")
    elif healthy == majority and len(members) > 1:
        remedy = "start the members that are down, or add one: etcdctl member add"
        yield Finding("etcd", Status.WARN, f"{detail}: another failure makes the metadata read-only", remedy)
    else:
        yield Finding("etcd", Status.OK, detail)


# -- the machine -----------------------------------------------------------------------------------------------------


def _disk(data_dir: Path) -> Iterator[Finding]:
    folder = data_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent  # the node creates missing folders
    try:
        free = shutil.disk_usage(folder).free
        yield _free(folder, free)
        yield _fsync(folder)
    except OSError as error:
        yield Finding(
            "disk",
            Status.FAIL,
            f"{folder}: {error.strerror or error}",
            "choose another --data-dir, or change its owner",
        )


def _free(folder: Path, free: int) -> Finding:
    detail = f"{free / 1000**3:.1f} GB free in {folder}"
    if free < FREE_BYTES_FAIL:
        return Finding("space", Status.FAIL, detail, "free space, or choose another --data-dir")
    if free < FREE_BYTES_WARN:
        return Finding("space", Status.WARN, detail, "limit retention (topics.retention_bytes), or free space")
    return Finding("space", Status.OK, detail)


def _fsync(folder: Path) -> Finding:
    """Measure the sync that an acknowledgement waits for, with minimal data."""
    seconds = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".braid-doctor-") as file:
        for _ in range(FSYNCS):
            file.write(b"\0" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    detail = f"median {median * 1000:.2f} ms, slowest {max(seconds) * 1000:.2f} ms of {FSYNCS} in {folder}"
    if median > FSYNC_SLOW_SECONDS:
        return Finding(
            "fsync", Status.WARN, detail, "every acknowledgement waits for a sync: use a faster disk, or flush=interval"
        )
    return Finding("fsync", Status.OK, detail)


# -- the data folder ---------------------------------------------------------------------------------------------------


def _partitions(data_dir: str) -> Iterator[Finding]:
    """Yield damage in the data folder, which a running node may use."""
    disk, quoted = OsDisk(), shlex.quote(data_dir)
    try:
        if not any(disk.exists(join(data_dir, name)) for name in ("folder.a", "folder.b")):
            return  # no node has run here
        layout = Layout(disk, data_dir)
        places = sorted(_sized_places(layout), key=lambda each: each[0])
    except (BrokerError, StorageFault) as error:
        yield Finding("partitions", Status.FAIL, str(error), f"list the readable topics: braid log list {quoted}")
        return
    stopped = f"stop the node, then: braid log repair --dry-run {quoted}"
    for each in layout.findings:
        if each.severity is Severity.DAMAGE:
            yield Finding("partitions", Status.FAIL, f"{each.file}: {each.why}; {each.meaning}", stopped)
    yield from _set_aside(find_quarantined(disk, data_dir), quoted)
    readable = _readable(size for size, _, _ in places)
    damages = [(place, number, _damage(layout, place, number)) for _, place, number in places[:readable]]
    damaged = [(place.meta.name, number, why) for place, number, why in damages if why]
    for topic, number, why in damaged[:NAMED_MAX]:
        yield Finding(
            "partitions", Status.FAIL, f"{topic}/{number} is damaged: {why}", f"{stopped} {shlex.quote(topic)}"
        )
    if more := len(damaged[NAMED_MAX:]):
        yield Finding("partitions", Status.FAIL, f"{more} more are damaged", f"list them: braid log verify {quoted}")
    if unread := len(places) - readable:
        detail = f"{unread} of {len(places)} were not read, to save time"
        yield Finding("partitions", Status.WARN, detail, f"read all: braid log verify {quoted}")
    elif not damaged:
        yield Finding("partitions", Status.OK, f"{len(places)}, all intact")


def _set_aside(found: Quarantined, data_dir: str) -> Iterator[Finding]:
    """Yield files that a node has quarantined and never removes."""
    wheres = {"damaged copies": f"find {data_dir} -name '*{DAMAGED}'", "topics that are not in the metadata": data_dir}
    for what, kept in zip(wheres, found, strict=True):
        if kept:
            more = f" and {len(kept) - NAMED_MAX} more" if len(kept) > NAMED_MAX else ""
            detail = f"{len(kept)} {what}: {', '.join(kept[:NAMED_MAX])}{more}"
            remedy = f"braidlog never deletes them: check them, then delete them ({wheres[what]})"
            yield Finding("quarantine", Status.WARN, detail, remedy)


def _readable(sizes: Iterable[int]) -> int:
    """Return how many partitions can be read in reasonable time."""
    costs = accumulate(size + PARTITION_COST_BYTES for size in sizes)
    return sum(1 for _ in takewhile(lambda cost: cost <= READ_BYTES_MAX, costs))


def _sized_places(layout: Layout) -> Iterator[tuple[int, TopicPlace, int]]:
    for place in layout.topics:
        for number in place.meta.held:
            try:
                size = segment_bytes(layout.disk, layout.partition_folder(place, number))
            except StorageFault:
                size = 0  # `_damage` reports the problem, if the partition still exists
            yield size, place, number


def _damage(layout: Layout, place: TopicPlace, number: int) -> str:
    """Return the first damage, if a second read confirms it: a running node may remove a segment between two reads."""
    why = ""
    for _ in range(2):
        try:
            found = layout.inspect(place, number).report.findings
        except StorageFault as fault:
            why = f"not readable: {fault}"
            continue
        why = next(
            (f"{each.file}: {each.why}; {each.meaning}" for each in found if each.severity is Severity.DAMAGE), ""
        )
        if not why:
            return ""
    return why if layout.disk.is_folder(join(layout.path, place.label)) else ""  # else its topic was deleted


# -- the machine's ports and limits ------------------------------------------------------------------------------------


def _port(setting: str, port: int) -> Finding:
    check = f"port {setting.removeprefix('listeners.').removesuffix('.port')}"
    if port == 0:
        return Finding(check, Status.OK, "any free port")
    with socket.socket() as probe:
        # As the node does: a recently closed port is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            return Finding(check, Status.FAIL, f"{port} is reserved", f"--set {setting}=…, above 1023")
        except OSError:
            return _taken(check, setting, port)
    return Finding(check, Status.OK, f"{port} is free")


def _taken(check: str, setting: str, port: int) -> Finding:
    """Report what uses a port: a running node is fine, another program is not."""
    remedy = f"stop the program, or choose another port: --set {setting}=…"
    try:
        with socket.create_connection(("127.0.0.1", port), PROBE_SECONDS):
            pass
    except OSError:
        return Finding(check, Status.WARN, f"{port} is in use, and does not answer", remedy)
    if setting == "listeners.kafka.port" and _speaks_kafka(port):
        return Finding(check, Status.OK, f"{port} is in use by a Kafka server, perhaps a running node")
    return Finding(check, Status.WARN, f"{port} is in use by a server, perhaps a running node", remedy)


def _speaks_kafka(port: int) -> bool:
    from braidlog.client.blocking import connect  # noqa: PLC0415 - only for this check
    from braidlog.client.errors import ClientError  # noqa: PLC0415

    patience = {"connect_timeout": PROBE_SECONDS, "request_timeout": PROBE_SECONDS, "retry_timeout": 0.0}
    try:
        connect(f"kafka://127.0.0.1:{port}", tls=None, **patience).close()
    except ClientError:
        return False
    return True


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{soft} open files, up to {'any number' if hard == resource.RLIM_INFINITY else hard}"
    if hard != resource.RLIM_INFINITY and hard < FILES_WARN:
        return Finding("ulimit", Status.WARN, detail, f"raise it: ulimit -n {FILES_WARN}, LimitNOFILE= in systemd")
    return Finding("ulimit", Status.OK, detail)


def _clock() -> Finding:
    wall = time.gmtime()
    detail = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', wall)}, steps of {time.get_clock_info('time').resolution:g} s"
    if wall.tm_year < CLOCK_YEAR_MIN:
        return Finding("clock", Status.FAIL, detail, "set the clock: record timestamps and retention depend on it")
    return Finding("clock", Status.OK, detail)


# -- Spark and lakes ---------------------------------------------------------------------------------------------------


def _java(run: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run) -> Finding:
    remedy = "only Spark needs it: apt install openjdk-17-jre-headless, or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if program is None:
        return Finding("java", Status.WARN, "not found", remedy)
    try:
        done = run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", Status.WARN, f"{program}: {error}", remedy)
    return _judge_java(program, done.stderr, remedy)


def _judge_java(program: str, said: str, remedy: str) -> Finding:
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return Finding("java", Status.WARN, f"{program} does not report its version", remedy)
    major = int(found[2] or 0) if found[1] == "1" else int(found[1])  # Java 8 reports 1.8
    if major not in JAVA:
        wanted = " or ".join(map(str, JAVA))
        return Finding("java", Status.WARN, f"version {major}; Spark 4 runs on {wanted}", remedy)
    return Finding("java", Status.OK, f"version {major}, {program}")


def _package(name: str, extra: str, first: tuple[int, ...], beyond: tuple[int, ...] | None) -> Finding:
    version = installed_version(name)
    remedy = f"pip install 'braidlog[{extra}]'"
    needs = f">={_dotted(first)}" + ("" if beyond is None else f",<{_dotted(beyond)}")
    if version is None:
        return Finding(name, Status.WARN, f"not installed; {extra} needs {needs}", remedy)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers < first or (beyond is not None and numbers >= beyond):
        return Finding(name, Status.WARN, f"{version}; {extra} needs {needs}", remedy)
    return Finding(name, Status.OK, f"{version} ({needs})")


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
