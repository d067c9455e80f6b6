"""`braid kv move`: keys of a folder into a store, into a cluster's slots and back; interrupted anywhere, and run again."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.braid import check, fresh, until, url_of
from tests.server.etcd.members import members

from braidlog import Log, kv
from braidlog.cli import main
from braidlog.client.kv.blocking import KeyValue
from braidlog.client.kv.commands import Command
from braidlog.client.kv.copying import Copied, Held, copy_keys
from braidlog.kv import operations as o
from braidlog.kv.local import LocalStore
from braidlog.kv.settings import KeyValueSettings
from braidlog.model.clock import SystemClock
from braidlog.storage.files import OsDisk
from braidlog.testing.cluster_process import ClusterProcess
from braidlog.testing.server import ServerProcess
from braidlog.tools.keyvalue.inspect import node_of

HOUR_MS = 3_600_000
LONG = [b"%07d" % at * 8_000 for at in range(20)]
"""A list that takes several commands."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("kv-move") / "data") as process:
        yield process


@pytest.fixture
def store(server: ServerProcess) -> Iterator[KeyValue]:
    with kv.connect(url_of(server, "mayfly")) as opened:
        yield opened


def braid(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["kv", "move", *map(str, args)], prog_name="braid")


def moved(*args: str | Path) -> dict[str, Any]:
    result = braid(*args, "-o", "json")
    assert result.stdout, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    check("kv-move", report)
    assert result.exit_code == bool(report["differing"])
    return report


def folder_with(path: Path, word: str) -> Path:
    """A stopped node's folder with a key of every kind, one with a time to live, and one whose time is over."""
    Log(str(path)).close()
    (path / "kv").mkdir()
    disk, now_ms = OsDisk(), SystemClock().now_ms()
    begun_ms = now_ms - HOUR_MS
    opened = LocalStore(disk, str(path / "kv"), node_of(disk, str(path)), KeyValueSettings(), now_ms=begun_ms)
    name = word.encode()
    opened.execute(o.Set(name + b" over", b"v", ttl_seconds=60), begun_ms)
    opened.execute(o.Set(name + b" text", b""), now_ms)
    opened.execute(o.Set(name + b" short", b"v", ttl_seconds=3000), now_ms)
    opened.execute(o.Increment(name + b" count", -7), now_ms)
    opened.execute(o.Push(name + b" list", o.End.RIGHT, (b"a", b"b", b"")), now_ms)
    opened.execute(o.HashSet(name + b" hash", ((b"f", b"1"), (b"g", b"\xff"))), now_ms)
    opened.close()
    return path


def contents(store: KeyValue, word: str) -> list[object]:
    """What `folder_with` wrote, as a store has it."""
    return [
        *(store.get(f"{word} {each}") for each in ("over", "text", "short", "count")),
        store.lrange(f"{word} list"),
        store.hgetall(f"{word} hash"),
    ]


WHOLE = [None, b"", b"v", b"-7", [b"a", b"b", b""], {b"f": b"1", b"g": b"\xff"}]


def test_a_folder_is_moved_once_and_what_differs_is_left_alone(
    tmp_path: Path, server: ServerProcess, store: KeyValue
) -> None:
    word, target = fresh("one"), url_of(server, "mayfly")
    data = folder_with(tmp_path / "data", word)
    report = moved(data, target)
    assert (report["keys"], report["moved"], report["same"]) == (5, 5, 0)
    assert contents(store, word) == WHOLE
    assert store.incr(f"{word} count", 7) == 0
    assert (store.ttl(f"{word} text"), 2900 < (store.ttl(f"{word} short") or 0) <= 3001) == (0, True)

    store.rpush(f"{word} list", "c")
    store.delete(f"{word} hash")
    store.set(f"{word} hash", "of another kind")
    store.expire(f"{word} text", 1000)
    report = moved(data, target)
    assert (report["keys"], report["moved"], report["same"]) == (5, 0, 1)
    assert report["differing"] == [f"{word} {each}" for each in ("text", "count", "list", "hash")]
    assert store.lrange(f"{word} list")[-1] == b"c"
    told = braid(data, target)
    assert (told.exit_code, f"differs: {word} list\n" in told.stdout, "1 were there already" in told.stdout) == (
        1,
        True,
        True,
    )

    assert moved(data, target, "--overwrite")["moved"] == 4
    assert (contents(store, word), store.ttl(f"{word} text")) == (WHOLE, 0)
    assert moved(data, target)["same"] == 5


def test_a_folder_in_use_is_refused(server: ServerProcess) -> None:
    refused = braid(server.data_dir, url_of(server, "mayfly"))
    assert (refused.exit_code, "is in use by" in refused.stderr) == (3, True)
    assert "is in use by" in braid(server.data_dir, "--prepare").stderr
    assert "Missing argument 'TARGET'" in braid(server.data_dir).stderr


class CutError(Exception):
    """Where the process would have ended."""


class Cut:
    """A store that is reached for so many changes, and then no more."""

    def __init__(self, store: KeyValue, changes: int) -> None:
        self._store = store
        self._left = changes
        self.llen, self.hgetall = store.llen, store.hgetall

    def run(self, commands: Sequence[Command[Any]]) -> list[Any]:
        found = []
        for command in commands:
            self._left -= not command.reads
            if self._left < 0:
                raise CutError
            found += self._store.run([command])
        return found


def copy(store: Any, held: Sequence[Held], *, overwrite: bool = False) -> Copied:
    *_, counts = copy_keys(store, held, SystemClock(), overwrite=overwrite)
    return counts


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_copy_that_ends_anywhere_is_completed_by_the_next(store: KeyValue, *, overwrite: bool) -> None:
    deadline_ms = SystemClock().now_ms() + HOUR_MS
    for changes in range(20):
        word = fresh("cut").encode()
        held = [
            Held(word + b"s", "string", b"v", deadline_ms),
            Held(word + b"c", "counter", b"41", deadline_ms),
            Held(word + b"l", "list", LONG, deadline_ms),
            Held(word + b"h", "hash", {b"%d" % at: value for at, value in enumerate(LONG)}, deadline_ms),
        ]
        if overwrite:
            store.rpush(held[0].key, "x")
            store.rpush(held[1].key, "x")
            store.rpush(held[2].key, "x")
            store.set(held[3].key, "x")
        try:
            copy(Cut(store, changes), held, overwrite=overwrite)
        except CutError:
            counts = copy(store, held, overwrite=overwrite)
            assert (counts.keys, counts.copied + counts.same, counts.differing) == (4, 4, []), changes
            assert [store.get(word + b"s"), store.get(word + b"c")] == [b"v", b"41"]
            assert (store.lrange(word + b"l"), store.hgetall(word + b"h")) == (LONG, held[3].value)
            assert all(3500 < (store.ttl(each.key) or 0) <= 3601 for each in held)
        else:
            break
    else:
        raise AssertionError("it never came to its end")
    assert changes > 10


def test_a_target_that_is_killed_has_all_when_the_move_is_run_again(tmp_path: Path) -> None:
    held = [Held(b"k%d" % at, "counter", b"%d" % at) for at in range(1000)]
    with ServerProcess(tmp_path / "data") as node:
        with kv.connect(url_of(node, "mayfly")) as store:
            told = copy_keys(store, held, SystemClock())
            assert next(told).copied == 256
            node.kill()
        node.restart()
        with kv.connect(url_of(node, "mayfly")) as store:
            counts = copy(store, held)
            assert (counts.same, counts.copied, counts.differing) == (256, 744, [])
            assert store.incr("k999", 1) == 1000


def test_keys_of_one_node_go_into_slots_and_back(tmp_path: Path, server: ServerProcess, store: KeyValue) -> None:
    """The whole way: a node alone, the first of a cluster, slots on three nodes, and a node alone again."""
    word, data = fresh("way"), tmp_path / "node-1"
    folder_with(data, word)
    with ServerProcess(data) as alone:
        url = url_of(alone, "mayfly")
        with kv.connect(url) as keys:
            keys.set(f"{word} last", "v")
            until(lambda: (keys.stats().feed_sequence or 0) >= (keys.stats().sequence or 1), "the feed tells of it")
    with members(tmp_path, 1) as (etcd,):
        settings = ["--set", f"cluster.etcd={etcd.url}", "--set", "node=1", "--set", "cluster.prefix=way"]
        said = CliRunner().invoke(main, ["cluster", "init", "--data-dir", str(data), *settings])
        assert f"braid kv move {data} --prepare" in said.stdout, said.output
        assert " keys stay in" in braid(data, "--prepare").stdout
        assert braid(data, "--prepare").exit_code == 0
        with ClusterProcess(tmp_path, etcd.url, prefix="way") as nodes:
            until(lambda: "keys are in 128 slots from now on" in nodes[1].errors(), "slots are made")
            nodes[1].stop()
            others = f"mayfly://127.0.0.1:{nodes[2].ports['mayfly']},127.0.0.1:{nodes[3].ports['mayfly']}"
            report = moved(data, others, "--timeout", "60")
            assert (report["keys"], report["moved"]) == (6, 6)
            nodes[1].restart()
            with kv.connect(nodes.url("mayfly"), retry_timeout=60.0) as keys:
                assert contents(keys, word) == WHOLE
            feed = ["--feed-url", nodes.url("kafka"), "--timeout", "60"]
            report = moved(nodes.url("mayfly"), url_of(server, "mayfly"), *feed)
            assert (report["keys"], report["moved"]) == (6, 6)
            assert contents(store, word) == WHOLE
            assert moved(nodes.url("mayfly"), url_of(server, "mayfly"), *feed)["same"] == 6


def test_keys_of_a_running_node_are_named_by_its_feed(tmp_path: Path, server: ServerProcess, store: KeyValue) -> None:
    word = fresh("fed")
    with ServerProcess(tmp_path / "data") as node, kv.connect(url_of(node, "mayfly")) as keys:
        for at in range(50):
            keys.rpush(f"{word} list", f"{at}")
            keys.hset(f"{word} hash", {f"{at}": "v"})
        keys.set(f"{word} gone", "v")
        keys.delete(f"{word} gone")
        feed = ["--feed-url", url_of(node, "rustlog")]
        report = moved(url_of(node, "mayfly"), url_of(server, "mayfly"), *feed, "--timeout", "60")
        assert (report["keys"], report["moved"]) == (2, 2)
        assert store.lrange(f"{word} list") == keys.lrange(f"{word} list")
        assert len(store.hgetall(f"{word} hash")) == 50

        keys.set(f"{word} new", "v")
        store.set(f"{word} other", "v")
        wrong = ["--feed-url", url_of(server, "rustlog"), "--timeout", "5"]
        until(lambda: (store.stats().feed_sequence or 0) >= (store.stats().sequence or 0), "the feed tells of it")
        refused = braid(url_of(node, "mayfly"), url_of(server, "mayfly"), *wrong)
        assert (refused.exit_code, "2 keys were found" in refused.stderr) == (3, True), refused.output
