"""`braid support bundle`: what is in the archive, and that no secret and no record is."""

import gzip
import json
import stat
import tarfile
from pathlib import Path

import pytest
from tests.cli.braid import TOKENS, Braid, as_, guarded

from braidlog.kv import connect as connect_keys
from braidlog.testing.server import ServerProcess

PLANTED = {
    "password": "planted-password-of-eve",
    "record": "planted-record-value",
    "record key": "planted-record-key",
    "key": "planted-key",
    "value": "planted-value",
    "URL": "planted-url-password",
    "log token": "planted-log-token",
    "private key": "planted+private/key",
    "catalog": "planted-catalog-secret",
    "environment": "planted-in-the-environment",
}
LOG = f"""\
line before
connects to https://etcd:{PLANTED["URL"]}@10.0.0.1:2379
token = {PLANTED["log token"]}
-----BEGIN PRIVATE KEY-----
{PLANTED["private key"]}
-----END PRIVATE KEY-----
line after
"""


def files_of(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        found = {each.name.partition("/")[2]: opened.extractfile(each) for each in opened}
        return {name: file.read() for name, file in found.items() if file is not None}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a node that knows many secrets, made by an administrator."""
    folder = tmp_path_factory.mktemp("bundle")
    settings = [*guarded(folder), "--set", f"tables.warehouse=http://me:{PLANTED['URL']}@127.0.0.1:1/w"]
    with (folder / "braid.toml").open("a", encoding="utf-8") as file:
        file.write(f'[tables.catalog]\n"s3.secret-access-key" = "{PLANTED["catalog"]}"\n')
    (folder / "eve.password").write_text(PLANTED["password"], encoding="utf-8")
    (folder / "braid.log").write_text(LOG, encoding="utf-8")
    with ServerProcess(folder / "data", *settings) as server:
        braid, root = Braid(server), as_(folder, "root")
        braid.environment["BRAID_CLUSTER__PASSWORD"] = PLANTED["environment"]
        braid.ok("topic", "create", "orders", *root)
        braid.ok("produce", "orders", "-K", "=", *root, stdin=f"{PLANTED['record key']}={PLANTED['record']}\n")
        braid.ok("consume", "orders", "--group", "billing", *root)
        braid.ok("user", "create", "eve", "--password-file", str(folder / "eve.password"), *root)
        mayfly = f"mayfly://root:{TOKENS['root']}@127.0.0.1:{server.ports['mayfly']}"
        with connect_keys(mayfly) as store:
            store.set(PLANTED["key"].encode(), PLANTED["value"].encode())
        out = folder / "made.tar.gz"
        said = braid.ok("support", "bundle", "--out", str(out), "--log", str(folder / "braid.log"), *root)
        assert said.startswith(f"{out}: ")
        assert "missing" not in said
    return out


def test_no_secret_is_in_it(bundle: Path) -> None:
    """Not in a file, not in a name, not in the bytes of the archive itself."""
    raw = gzip.decompress(bundle.read_bytes())
    for what, word in {**PLANTED, **{f"token of {name}": word for name, word in TOKENS.items()}}.items():
        assert word.encode() not in raw, what
    for name, text in files_of(bundle).items():
        assert b"SCRAM-SHA-256$" not in text, name
        assert b"BEGIN PRIVATE" not in text, name
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600


def test_what_helps_is_in_it(bundle: Path) -> None:
    files = files_of(bundle)
    assert "missing.txt" not in files
    (topic,) = [each for each in json.loads(files["topics.json"])["described"] if each["topic"] == "orders"]
    assert topic["partitions"] == [{"partition": 0, "earliest": 0, "latest": 1}]
    assert "retention.ms" in {each["name"] for each in topic["settings"]}
    assert [each["group"] for each in json.loads(files["groups.json"])["described"]] == ["billing"]
    assert {each["user"] for each in json.loads(files["users.json"])} == {"eve"}
    told = json.loads(files["nodes/0/description.json"])
    settings = {each["name"]: each["value"] for each in told["settings"]}
    assert settings["auth.tokens"] == dict.fromkeys(TOKENS, "…")
    assert settings["tables.warehouse"] == "http://…@127.0.0.1:1/w"
    assert settings["kv.flush"]
    assert all(check["ok"] for check in told["checks"])
    assert b"braidlog_topic" in files["nodes/0/metrics.txt"] or b"braidlog_" in files["nodes/0/metrics.txt"]
    assert b"thread MainThread" in files["nodes/0/stacks.txt"]
    assert b"Max open files" in files["nodes/0/limits.txt"]
    assert any("orders" in each["words"] for each in json.loads(files["cluster/events.json"]))
    assert json.loads(files["machine/facts.json"])["packages"]["msgspec"]
    log = files["logs/0-braid.log"].decode()
    assert log.startswith("line before\n")
    assert log.endswith("line after\n")
    assert b"before you send it" in files["README.txt"]


def test_without_a_node_there_is_one_too(tmp_path: Path) -> None:
    out = tmp_path / "alone.tar.gz"
    (tmp_path / "long.log").write_text("".join(f"line {number}\n" for number in range(1000)), encoding="utf-8")
    args = ["support", "bundle", "--out", str(out), "--log", str(tmp_path / "long.log"), "--log-bytes", "50"]
    assert "missing: the nodes: 127.0.0.1:1: connection refused" in Braid().ok(*args)
    files = files_of(out)
    assert b"connection refused" in files["missing.txt"]
    assert files["logs/0-long.log"].startswith(b"line 99")
    assert len(files["logs/0-long.log"]) <= 50
    before = out.read_bytes()
    assert "already exists" in Braid().fails(3, *args)
    assert out.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_who_may_not_see_everything_has_less(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *guarded(tmp_path)) as server:
        out = tmp_path / "less.tar.gz"
        said = Braid(server).ok("support", "bundle", "--out", str(out), *as_(tmp_path, "ann"))
    assert "missing: nodes/0/description: " in said
    assert "may not administer the cluster" in files_of(out)["missing.txt"].decode()
