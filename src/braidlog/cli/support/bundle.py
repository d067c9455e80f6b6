"""`braid support bundle`: collects diagnostics in one archive.

Everything passes `model/redaction.py` on its way into the archive; records, keys and values are never read. A part that
fails is listed in the archive and does not stop the others.
"""

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import click
import msgspec

from braidlog.cli import REFUSED, end
from braidlog.cli.cluster.doctor import examine
from braidlog.cli.cluster.inspect import rows_of, status_of
from braidlog.cli.group.inspect import described
from braidlog.cli.support import machine
from braidlog.cli.terminal.connection import Node, with_node
from braidlog.cli.terminal.output import is_watched, plural, size
from braidlog.cli.topic.inspect import described_topic
from braidlog.client.blocking import Client
from braidlog.client.drivers.cluster import ClusterEvent, ClusterInfo
from braidlog.client.errors import ClientError
from braidlog.client.schemes import parse_url
from braidlog.model.clock import SystemClock
from braidlog.model.redaction import without_secrets, without_secrets_in
from braidlog.model.reporting import prometheus_text

LOG_BYTES: Final = 10_000_000
NAMES_MAX: Final = 1_000
"""Topics and groups that are described; of further ones the archive has names only."""
README: Final = """\
Output of `braid support bundle`. Passwords, tokens, private keys and user names in URLs were removed; records, keys and
values are not included. Names of topics, groups, users and machines are: review the archive before you send it.

machine/   this machine: kernel, limits, memory, disks, versions of packages
cluster/   nodes, partitions, events, problems
nodes/N/   each node: description, settings, metrics, stacks of its threads and tasks
topics.json, groups.json, transactions.json, rules.json, users.json, quotas.json
logs/      the ends of the log files given with --log
missing.txt   parts that could not be collected, and why
"""


class Bundle:
    """Writer of an archive, which appears when it is complete and is readable by its owner only."""

    def __init__(self, file: Path, known: list[str], now: float) -> None:
        self._file = file
        self._partial = file.with_name(f".{file.name}.{os.getpid()}")
        self._known = known
        self._now = now
        self._folder = file.name.removesuffix(".tar.gz")
        self.missing: list[str] = []
        self.parts = 0

    def __enter__(self) -> Self:
        descriptor = os.open(self._partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        self._raw = os.fdopen(descriptor, "wb")
        self._archive = tarfile.open(fileobj=self._raw, mode="w:gz")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._archive.close()
        self._raw.close()
        if error is None:
            self._partial.rename(self._file)
        else:
            self._partial.unlink()

    def text(self, name: str, text: str) -> None:
        self._add(name, without_secrets(text, self._known).encode("utf-8", "backslashreplace"))

    def json(self, name: str, value: object) -> None:
        clean = without_secrets_in(msgspec.json.decode(msgspec.json.encode(value)), self._known)
        self._add(name, msgspec.json.format(msgspec.json.encode(clean), indent=2) + b"\n")

    def part(self, name: str, gather: Callable[[], object]) -> Any:  # noqa: ANN401 - any result of `gather`
        """Add the result of `gather` as JSON; record the reason if it fails."""
        if is_watched():
            click.echo(f"{name} …", err=True)
        try:
            found = gather()
        except (ClientError, OSError) as error:
            self.missing.append(f"{name}: {error}")
            return None
        self.json(f"{name}.json", found)
        return found

    def _add(self, name: str, raw: bytes) -> None:
        entry = tarfile.TarInfo(f"{self._folder}/{without_secrets(name, self._known)}")
        entry.size, entry.mtime, entry.mode = len(raw), int(self._now), 0o600
        self._archive.addfile(entry, io.BytesIO(raw))
        self.parts += 1


@click.command(
    epilog="""\b
Example:
  braid support bundle
  braid support bundle --log /var/log/braidlog.log --out fault.tar.gz
  journalctl -u braidlog --since -1h > braidlog.log && braid support bundle --log braidlog.log
"""
)
@click.option("--out", metavar="FILE", help="Archive to write.  [default: ./braidlog-support-TIME.tar.gz]")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Include the end of this log file; repeatable.",
)
@click.option(
    "--log-bytes", type=click.IntRange(1), default=LOG_BYTES, show_default=True, help="Bytes of each log file."
)
@with_node
def bundle(node: Node, out: str | None, logs: tuple[str, ...], log_bytes: int) -> None:
    """Collect diagnostics of this machine and all nodes that answer in one archive.

    The archive has versions, settings, metrics, health, events, topics and groups. Passwords, tokens, private keys and
    credentials in URLs are removed; records, keys and values are not read. Names of topics, groups, users and machines
    are included. Parts that cannot be collected are listed in missing.txt; the command works without a node, too.
    """
    now = SystemClock().now_ms() / 1000
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    file = Path(out or f"braidlog-support-{stamp}.tar.gz")
    if file.exists():
        end(REFUSED, f"{file} already exists; pass another --out")
    target = parse_url(node.url)
    known = [word for word in (target.token,) if word]
    try:
        with Bundle(file, known, now) as archive:
            archive.text("README.txt", README)
            folders = _gather(archive, node)
            archive.part("machine/facts", lambda: machine.facts(folders))
            for name, text in machine.proc_files().items():
                archive.text(f"machine/{name}.txt", text)
            for at, log in enumerate(logs):
                archive.text(f"logs/{at}-{Path(log).name}", _end_of(log, log_bytes))
            if archive.missing:
                archive.text("missing.txt", "\n".join(archive.missing) + "\n")
    except OSError as error:
        end(REFUSED, f"{file}: {error.strerror or error}")
    click.echo(f"{file}: {plural(archive.parts, 'file')}, {size(file.stat().st_size)}")
    for line in archive.missing:
        click.echo(f"missing: {without_secrets(line, known)}")


def _gather(archive: Bundle, node: Node) -> list[str]:
    """Collect the parts of all nodes; return their data folders."""
    try:
        with node.connect() as client:
            return list(_of_nodes(archive, client))
    except ClientError as error:
        archive.missing.append(f"the nodes: {error}")
        return []


def _of_nodes(archive: Bundle, client: Client) -> Iterator[str]:
    admin = client.admin
    parts: dict[str, Callable[[], object]] = {
        "topics": lambda: _some(admin.list_topics(), lambda name: described_topic(client, name, everything=True)),
        "groups": lambda: _some(admin.list_groups(), lambda name: described(client, name)),
        "transactions": admin.list_transactions,
        "rules": admin.list_rules,
        "users": admin.list_users,
        "quotas": admin.list_quotas,
        "cluster/events": lambda: _events(client),
    }
    info: ClusterInfo | None = archive.part("cluster/info", admin.describe_cluster)
    for name, gather in parts.items():
        archive.part(name, gather)
    if info is None:
        return
    archive.json("cluster/status.json", status_of(info))
    archive.json("cluster/doctor.json", examine(info))
    for row in rows_of(info):
        yield from _of_node(archive, client, row.node)


def _of_node(archive: Bundle, client: Client, number: int) -> Iterator[str]:
    place = f"nodes/{number}"
    archive.part(f"{place}/folders", lambda: client.admin.log_folders(number))
    told = archive.part(f"{place}/description", lambda: client.admin.describe_node(number, in_full=True))
    if told is None:
        return
    archive.text(f"{place}/metrics.txt", prometheus_text.text_of(told.snapshot).decode())
    archive.text(f"{place}/stacks.txt", "\n".join(f"{name}\n{text}" for name, text in told.stacks.items()))
    limits = machine.limits_of(told.snapshot.process.pid)
    if limits is not None:
        archive.text(f"{place}/limits.txt", limits)
    yield told.data_dir


def _events(client: Client) -> list[ClusterEvent]:
    found: list[ClusterEvent] = []
    while more := client.admin.cluster_events((found[-1].seq, found[-1].index) if found else (0, -1)):
        found += more
    return found


def _some(names: list[str], describe: Callable[[str], object]) -> dict[str, object]:
    return {"described": [describe(name) for name in names[:NAMES_MAX]], "only_named": names[NAMES_MAX:]}


def _end_of(file: str, count: int) -> str:
    """Return the end of a file from the beginning of a line: half a line may lack the name that marks a secret."""
    with Path(file).open("rb") as log:
        begin = max(log.seek(0, os.SEEK_END) - count, 0)
        log.seek(begin)
        raw = log.read(count)
    if begin:
        raw = raw[raw.find(b"\n") + 1 :]
    return raw.decode("utf-8", "backslashreplace")
