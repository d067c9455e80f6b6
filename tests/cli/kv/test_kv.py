"""`braid kv` against a real node: what is printed, in which form, and which exit code is which."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from braidlog.cli import main
from braidlog.cli.kv.salvage import TAIL_FOLDER
from braidlog.kv.engine.hybrid_clock import Stamp
from braidlog.kv.engine.operations import Level
from braidlog.kv.engine.values import pack_pairs, pack_strings
from braidlog.kv.replicated.log_records import Origin, SlotRecord
from braidlog.kv.replicated.salvage_files import keep_tail, read_tail
from braidlog.kv.wal.wal_entries import Op
from braidlog.storage.files import OsDisk
from braidlog.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("cli-kv") / "data", "--set", "kv.memory_bytes_max=100000") as process:
        yield process


def url_of(server: ServerProcess, dialect: str = "mayfly") -> str:
    host, port = server.address(dialect)
    return f"{dialect}://{host}:{port}"


class Kv:
    """The command with the server's URL in the environment."""

    def __init__(self, server: ServerProcess) -> None:
        self._environment = {"BRAID_KV_URL": url_of(server), "BRAID_FEED_URL": url_of(server, "rustlog")}

    def __call__(self, *args: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(main, ["kv", *args], env=self._environment, input=stdin)

    def ok(self, *args: str, stdin: bytes = b"") -> str:
        result = self(*args, stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "-o", "json"))

    def no(self, *args: str) -> str:
        result = self(*args)
        assert result.exit_code == 1
        return result.stderr


@pytest.fixture
def kv(server: ServerProcess) -> Kv:
    return Kv(server)


def test_strings(kv: Kv) -> None:
    assert kv.no("get", "s") == "braid: key not found: s\n"
    assert kv.ok("set", "s", "héllo") == ""
    assert kv.ok("get", "s") == "héllo\n"
    assert kv.json("get", "s") == {"value": "héllo"}
    assert kv.no("set", "s", "other", "--if-absent") == "braid: key already exists: s\n"
    assert kv.no("set", "absent", "x", "--if-present") == "braid: key not found: absent\n"
    assert kv.json("set", "s", "new", "--if-present") == {"stored": True}
    assert kv.ok("del", "s", "absent") == "1\n"
    assert kv.no("del", "s") == "braid: no key found\n"


def test_names_of_keys(kv: Kv) -> None:
    assert kv.ok("keys", "named:*") == ""
    for name in ("named:1", "named:2", "named:10", "named:x", "other[1]"):
        kv.ok("set", name, "v")
    assert set(kv.ok("keys", "named:?").split()) == {"named:1", "named:2", "named:x"}
    assert set(kv.ok("keys", "named:[12]*").split()) == {"named:1", "named:2", "named:10"}
    assert kv.ok("keys", "--prefix", "other[").split() == ["other[1]"]
    assert kv.ok("keys", "other[[]1]").split() == ["other[1]"]
    assert kv.ok("keys", "named").split() == [], "all of it, and not what it begins with"
    assert kv.json("keys", "other*") == {"keys": ["other[1]"], "more": False}
    assert len(kv.json("keys", "--limit", "2")["keys"]) == 2
    assert kv.json("keys", "--limit", "2")["more"]
    cut = kv("keys", "named:*", "--limit", "3")
    assert (cut.exit_code, len(cut.stdout.split()), cut.stderr) == (
        0,
        3,
        "list cut at 3 keys; raise --limit to see more\n",
    )


def test_keys_with_what_they_hold(kv: Kv) -> None:
    assert kv.ok("scan", "held:*") == ""
    kv.ok("set", "held:text", "x" * 100, "--ttl", "1000")
    kv.ok("incr", "held:count", "--by", "7")
    kv.ok("rpush", "held:list", "a", "b")
    kv.ok("hset", "held:hash", "name=Ada")
    kv.ok("set", "held:raw", "-", stdin=b"\xff")
    found = kv.json("scan", "held:*")
    rows = {row["key"]: row for row in found["keys"]}
    assert not found["more"]
    assert 0 < rows["held:text"].pop("ttl_seconds") <= 1000
    nothing: dict[str, Any] = {"value": None, "items": [], "fields": []}
    assert rows["held:text"] == {"key": "held:text", "kind": "string", **nothing, "value": "x" * 100}
    assert [rows[f"held:{name}"]["value"] for name in ("count", "raw")] == ["7", {"base64": "/w=="}]
    assert rows["held:list"] == {"key": "held:list", "kind": "list", "ttl_seconds": 0, **nothing, "items": ["a", "b"]}
    assert rows["held:hash"]["fields"] == [{"field": "name", "value": "Ada"}]
    told = {line.split()[0]: line.split()[1:] for line in kv.ok("scan", "held:*").splitlines()}
    assert told["KEY"] == ["KIND", "TTL", "VALUE"]
    assert told["held:text"][2] == f"{'x' * 60}…"
    assert told["held:list"] == ["list", "0", "a", "b"]
    assert told["held:hash"] == ["hash", "0", "name=Ada"]
    cut = kv("scan", "--prefix", "held:", "--limit", "2")
    assert (len(cut.stdout.splitlines()), cut.stderr) == (3, "list cut at 2 keys; raise --limit to see more\n")


def test_bytes_that_are_no_text(kv: Kv) -> None:
    assert kv.ok("set", "raw", "-", stdin=b"\xff\x00a") == ""
    assert kv.ok("get", "raw") == "\\xff\x00a\n"
    assert kv.json("get", "raw") == {"value": {"base64": "/wBh"}}


def test_expiry(kv: Kv) -> None:
    kv.ok("set", "e", "x", "--ttl", "1000")
    assert 990 < int(kv.ok("ttl", "e")) <= 1000
    assert kv.ok("expire", "e", "0") == ""
    assert kv.json("ttl", "e") == {"ttl_seconds": 0}
    assert kv.json("expire", "e", "5") == {"ttl_seconds": 5}
    for command in (["ttl", "absent"], ["expire", "absent", "5"]):
        assert kv.no(*command) == "braid: key not found: absent\n"


def test_counters(kv: Kv) -> None:
    assert kv.ok("incr", "n") == "1\n"
    assert kv.ok("incr", "n", "--by", "10") == "11\n"
    assert kv.json("incr", "n", "--by", "-1") == {"value": 10}


def test_lists(kv: Kv) -> None:
    assert kv.ok("rpush", "l", "b", "c") == "2\n"
    assert kv.json("lpush", "l", "a") == {"length": 3}
    assert kv.ok("lrange", "l") == "a\nb\nc\n"
    assert kv.ok("lrange", "l", "-2", "-1") == "b\nc\n"
    assert kv.json("lrange", "l", "0", "0") == ["a"]
    assert kv.ok("lpop", "l") == "a\n"
    assert kv.ok("rpop", "l") == "c\n"
    kv.ok("rpop", "l")
    assert kv.no("lpop", "l") == "braid: key not found: l\n"
    assert kv.ok("lrange", "l") == ""


def test_hashes(kv: Kv) -> None:
    assert kv.ok("hset", "h", "name=ann", "formula=a=b") == "2\n"
    assert kv.ok("hget", "h", "formula") == "a=b\n"
    assert kv.no("hget", "h", "absent") == "braid: field not found in h: absent\n"
    assert kv.ok("hgetall", "h") == "FIELD    VALUE\nname     ann\nformula  a=b\n"
    assert kv.json("hgetall", "h") == [{"field": "name", "value": "ann"}, {"field": "formula", "value": "a=b"}]
    assert kv.ok("hdel", "h", "name") == "1\n"
    assert kv.no("hdel", "h", "name") == "braid: no field found in h\n"
    assert kv.no("hgetall", "absent") == "braid: key not found: absent\n"
    assert kv("hset", "h", "novalue").exit_code == 2


def test_the_node(kv: Kv) -> None:
    kv.ok("set", "figure", "x")
    stats = kv.json("stats")
    assert stats["keys"] >= 1
    assert stats["sequence"] >= stats["keys"]
    assert kv.json("memory")["limit_bytes"] == 100000
    assert "limit bytes" in kv.ok("memory")
    taken = kv.json("snapshot")
    assert taken["keys"] == kv.json("stats")["keys"]
    assert "taken ms" in kv.ok("snapshot")


def test_refusals_are_one_line_and_three(kv: Kv) -> None:
    kv.ok("rpush", "list", "x")
    for command in (["get", "list"], ["get", "k" * 300], ["set", "big", "x" * 70_000], ["set", "full", "x" * 60_000]):
        result = kv(*command)
        if command[1] == "full":
            result = kv("set", "fuller", "x" * 60_000)
        assert result.exit_code == 3, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("braid: ")
        assert len(result.stderr.splitlines()) == 1


def test_no_server_is_five() -> None:
    args = ["kv", "get", "k", "--url", "mayfly://127.0.0.1:1", "--timeout", "0.3"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 5
    assert result.stderr.startswith("braid: 127.0.0.1:1: connection refused")
    assert CliRunner().invoke(main, [*args[:3], "--server", *args[4:]]).stderr == result.stderr


@pytest.mark.parametrize("url", ["flux://127.0.0.1", "127.0.0.1:7275", "mayfly://127.0.0.1?x=1"])
def test_a_wrong_url_is_wrong_usage(url: str) -> None:
    assert CliRunner().invoke(main, ["kv", "get", "k", "--url", url]).exit_code == 2


def test_a_token_in_a_file_or_the_environment(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"secrettoken").hexdigest()
    file = tmp_path / "braid.toml"
    file.write_text(f'[auth.tokens]\nann = "{digest}"\n', "utf-8")
    with ServerProcess(tmp_path / "data", "--config", str(file)) as server:
        host, port = server.address("mayfly")
        for who, code in ((":secrettoken@", 0), ("ann:secrettoken@", 0), (":wrong@", 3), ("", 3)):
            result = CliRunner().invoke(main, ["kv", "stats"], env={"BRAID_KV_URL": f"mayfly://{who}{host}:{port}"})
            assert result.exit_code == code, result.output
            assert "secrettoken" not in result.output
        (tmp_path / "token").write_text("secrettoken\n", "utf-8")
        args = ["kv", "stats", "--url", f"mayfly://{host}:{port}", "--token-file", str(tmp_path / "token")]
        assert CliRunner().invoke(main, args).exit_code == 0


def test_watch(tmp_path: Path) -> None:
    """From the start: each change with its operation, what the key holds since, and when it is gone."""
    with ServerProcess(tmp_path / "data") as server:
        kv = Kv(server)
        kv.ok("set", "w1", "one")
        kv.ok("incr", "w2")
        kv.ok("rpush", "w3", "a", "b")
        kv.ok("hset", "w4", "f=v")
        kv.ok("del", "w1")
        kv.ok("set", "x", "not shown")
        lines = kv.ok("watch", "--from-start", "-n", "5", "--prefix", "w", "-o", "json").splitlines()
        told = [json.loads(line) for line in lines]
        assert [(each["operation"], each["key"], each["value"]) for each in told] == [
            ("set", "w1", "one"),
            ("incrby", "w2", 1),
            ("rpush", "w3", ["a", "b"]),
            ("hset", "w4", [{"field": "f", "value": "v"}]),
            ("del", "w1", None),
        ]
        assert [each["sequence"] for each in told] == [1, 2, 3, 4, 5]
        stamps = [each["stamp"] for each in told]
        assert stamps == sorted(stamps)
        shown = kv.ok("watch", "--from-start", "-n", "6").splitlines()
        assert [line.split("  ", 1)[1] for line in shown] == [
            "set  w1  one",
            "incrby  w2  1",
            'rpush  w3  ["a","b"]',
            'hset  w4  [{"field":"f","value":"v"}]',
            "del  w1  gone",
            "set  x  not shown",
        ]


def test_watch_follows_what_is_new(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        kv = Kv(server)
        assert "no topic '__kv'" in kv.no("watch", "-n", "1")
        kv.ok("set", "old", "x")
        command = [sys.executable, "-m", "braidlog.cli", "kv", "watch", "--feed-url", url_of(server, "rustlog")]
        with subprocess.Popen([*command, "-n", "3", "--from-start"], stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            assert "set  old  x" in watcher.stdout.readline()  # it has begun; what comes now is new
            kv.ok("set", "new", "y")
            assert "set  new  y" in watcher.stdout.readline()
            kv.ok("del", "old")
            assert "del  old  gone" in watcher.stdout.readline()
            assert watcher.wait(60) == 0


def cut(op: Op, key: bytes, argument: bytes = b"", ttl_seconds: int = 0) -> SlotRecord:
    return SlotRecord(op, key, argument, ttl_seconds, Level.ONE, Stamp(1_000, 0, bytes(16)), Origin(3, 42))


def test_writes_that_a_cluster_lacks_are_shown_and_carried_out_once(kv: Kv, tmp_path: Path) -> None:
    data = str(tmp_path)
    assert "No writes to salvage" in kv.ok("salvage", data)
    kv.ok("set", "cut-n", "5")
    records = [
        cut(Op.SET, b"cut-s", b"v", 100),
        cut(Op.EXPIRE, b"cut-s", b"", 200),
        cut(Op.INCRBY, b"cut-n", (10).to_bytes(8, "big")),
        cut(Op.RPUSH, b"cut-l", pack_strings([b"b", b"c"])),
        cut(Op.LPUSH, b"cut-l", pack_strings([b"a"])),
        cut(Op.HSET, b"cut-h", pack_pairs([(b"f", b"1"), (b"g", b"2")])),
        cut(Op.HDEL, b"cut-h", pack_strings([b"g"])),
        cut(Op.DEL, b"cut-gone"),
    ]
    path = keep_tail(OsDisk(), str(tmp_path / TAIL_FOLDER), 7, records)
    (told,) = kv.json("salvage", data)
    assert (told["file"], told["log"], len(told["changes"])) == (Path(path).name, 7, 8)
    assert "cut-s, cut-n, cut-l and 2 more" in kv.ok("salvage", data)
    assert "unknown file" in kv("salvage", data, "--apply", "other.tail").stderr
    assert kv("salvage", data, "--apply", told["file"], stdin=b"n\n").exit_code == 1
    assert kv.ok("salvage", data, "--apply", told["file"], "--yes") == "Applied 8 changes.\n"
    assert [kv.ok("get", "cut-s"), kv.ok("get", "cut-n")] == ["v\n", "15\n"]
    assert 100 < int(kv.ok("ttl", "cut-s")) <= 200
    assert kv.ok("lrange", "cut-l") == "a\nb\nc\n"
    assert kv.json("hgetall", "cut-h") == [{"field": "f", "value": "1"}]
    assert "No writes to salvage" in kv.ok("salvage", data)


def test_what_is_left_of_a_tail_that_could_not_be_carried_out_whole_stays(kv: Kv, tmp_path: Path) -> None:
    kv.ok("set", "cut-text", "no number")
    records = [cut(Op.SET, b"cut-first", b"v"), cut(Op.INCRBY, b"cut-text", (1).to_bytes(8, "big"))]
    path = keep_tail(OsDisk(), str(tmp_path / TAIL_FOLDER), 7, records)
    failed = kv("salvage", str(tmp_path), "--apply", Path(path).name, "--yes")
    assert failed.exit_code == 3
    assert read_tail(OsDisk(), path).records == records[1:]
    assert [each.name for each in (tmp_path / TAIL_FOLDER).iterdir()] == [Path(path).name]
