"""`braid kv verify` and `repair`, as typed, on the folder of a stopped node."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.braid import check

from braidlog import Log
from braidlog.cli import main
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.wal.local_store import LocalStore
from braidlog.storage.files import OsDisk
from braidlog.tools.keyvalue.inspect import node_of


def braid(*args: str | Path, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, ["kv", *map(str, args)], input=answer, prog_name="braid")


def checked(schema: str, *args: str | Path) -> Any:
    value = json.loads(braid(*args, "-o", "json").stdout)
    check(schema, value)
    return value


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with three keys; the entry of the second is damaged."""
    folder = tmp_path / "data"
    Log(str(folder)).close()
    (folder / "kv").mkdir()
    disk = OsDisk()
    store = LocalStore(disk, str(folder / "kv"), node_of(disk, str(folder)), KeyValueSettings(), now_ms=0)
    ends = []
    for key in (b"a", b"b", b"c"):
        store.execute(o.Set(key, key * 40), 0)
        store.wal.sync()
        ends.append(store.wal.size_bytes)
    store.close()
    log = folder / "kv/00000000000000000001.wal"
    content = bytearray(log.read_bytes())
    content[ends[0] + 30] ^= 1
    log.write_bytes(content)
    return folder


def test_a_damaged_store_is_shown_and_made_whole(data: Path) -> None:
    found = braid("verify", data)
    assert found.exit_code == 1
    assert "mutations lost: 1" in found.stdout
    assert "keys: 'b'" in found.stdout
    assert f"braid kv repair --dry-run {data}" in found.stdout
    checked("kv-verify", "verify", data)

    tried = braid("repair", "--dry-run", data)
    assert (tried.exit_code, "Nothing changed" in tried.stdout) == (0, True)
    checked("kv-repair-plan", "repair", "--dry-run", data)
    assert braid("repair", data, answer="n\n").exit_code == 1
    assert braid("verify", data).exit_code == 1, "nothing was changed"

    done = braid("repair", data, answer="y\n")
    assert (done.exit_code, "the store has 2 keys" in done.stdout) == (0, True), done.output
    assert [path.name for path in (data / "quarantine").glob("kv-*/*")] != []
    again = braid("verify", data)
    assert (again.exit_code, again.stdout.startswith("Intact: 2 keys")) == (0, True)
    assert "Nothing to repair" in braid("repair", data).stdout


def test_a_repair_told_as_json(data: Path) -> None:
    report = checked("kv-repair", "repair", "--yes", data)
    assert (report["keys_kept"], report["verified"]["sound"]) == (2, True)


def test_a_folder_without_a_store(tmp_path: Path) -> None:
    Log(str(tmp_path / "data")).close()
    found = braid("verify", tmp_path / "data")
    assert found.exit_code not in (0, 1)
    assert "has no key-value store" in found.output
