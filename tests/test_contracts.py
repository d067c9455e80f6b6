"""Import contracts bite: each of them is broken once, in a copy of the package, and says so."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

VIOLATIONS = {
    "layers": ("storage/segment/segment.py", "braidlog.broker.topics"),
    "pure-dialects": ("wire/contract.py", "socket"),
    "services-in-no-dialect": ("coordinator/offsets.py", "asyncio"),
    "adapters-ask-services": ("adapters/flux/handlers.py", "braidlog.storage.log.partition_log"),
    "logs-behind-partitions": ("coordinator/journal.py", "braidlog.storage.log.partition_log"),
    "no-sibling-dialects": ("wire/mlog/messages.py", "braidlog.wire.flux"),
    "no-sibling-adapters": ("adapters/mlog/handlers.py", "braidlog.adapters.flux"),
    "client-speaks-to-any-server": ("client/session.py", "braidlog.storage.embedded_log"),
    "server-needs-no-client": ("server/net/listener.py", "braidlog.client.session"),
    "pipeline-is-a-client": ("spark/topic_source.py", "braidlog.broker.topics"),
    "console-is-a-client": ("console/app.py", "braidlog.server.net.listener"),
    "tools-work-offline": ("tools/doctor.py", "braidlog.partition.fetch.fetch"),
    "pure-bytes": ("codec/varint.py", "threading"),
    "one-door-to-the-disk": ("storage/segment/segment_files.py", "pathlib"),
    "the-stores-log-is-a-port": ("kv/engine/store.py", "braidlog.storage.files"),
    "decisions-without-disks": ("replication/__init__.py", "random"),
    "the-store-behind-the-same-door": ("kv/engine/hybrid_clock.py", "time"),
}
"""For each contract a file and what it must not import."""


REACHES_INTO_A_LOG = re.compile(r"\b(hosted|h)\.log\b|\bpartition\([^)]*\)\.log\b")


def test_nobody_reaches_through_a_partition_into_its_log() -> None:
    """What an import contract cannot see: an attribute. The way round is a method of `Partition`."""
    assert REACHES_INTO_A_LOG.search("hosting.partition(name, 0).log.sync()")
    for folder in ("adapters", "broker", "coordinator", "server"):
        for path in (ROOT / "src/braidlog" / folder).rglob("*.py"):
            found = REACHES_INTO_A_LOG.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path.relative_to(ROOT)}: {found}"


def test_every_contract_can_be_broken(tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = {each["id"]: each["name"] for each in settings["tool"]["importlinter"]["contracts"]}
    assert names.keys() == VIOLATIONS.keys(), "a contract that nobody has seen fail"
    copied = tmp_path / "src" / "braidlog"
    shutil.copytree(ROOT / "src/braidlog", copied, ignore=shutil.ignore_patterns("__pycache__", "*.so", "static"))
    for file, forbidden in VIOLATIONS.values():
        with (copied / file).open("a", encoding="utf-8") as source:
            source.write(f"\nimport {forbidden}\n")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    judged = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(copied.parent), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = re.sub(r"\s+", " ", judged.stdout)
    assert judged.returncode == 1, judged.stdout + judged.stderr
    assert [name for name in names.values() if f"{name} BROKEN" not in said] == []
