"""`braid rule` against a real node: what is added holds at once, is shown, and can be taken back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.braid import TOKENS, Braid, as_, guarded

from braidlog import kv
from braidlog.testing.server import ServerProcess


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ruled")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(folder / "data", *guarded(folder)) as started:
        yield started


@pytest.fixture(scope="module")
def braid(server: ServerProcess) -> Braid:
    return Braid(server)


def test_a_rule_is_added_holds_and_is_taken_back(braid: Braid, folder: Path) -> None:
    root, ann = as_(folder, "root"), as_(folder, "ann")
    braid.ok("topic", "create", "open1", *root)
    reset = ("group", "reset", "anns-1", "--to", "earliest", "--topic", "open1", "--yes", *ann)
    assert "not allowed" in braid.fails(3, *reset)
    said = braid.ok("rule", "add", "ann", "read", "--group", "anns-*", "--key", "ann:*", *root)
    assert said == "added ann may read group anns-*\nadded ann may read key ann:*\n"
    braid.ok(*reset)
    braid.ok("rule", "add", "ann", "*", "--group", "anns-1", "--deny", *root)
    assert "not allowed" in braid.fails(3, *reset)
    told = [tuple(row.values()) for row in braid.json("rule", "list", *root, schema="rule-list")]
    added = [("ann", "group", "anns-*", "read", False), ("ann", "group", "anns-1", "*", True)]
    for row in (*added, ("ann", "key", "ann:*", "read", False), ("root", "topic", "*", "*", False)):
        assert row in told
    assert ["ann", "group", "anns-1", "*", "deny"] in [
        line.split() for line in braid.ok("rule", "list", *root).splitlines()
    ]
    assert braid.ok("rule", "delete", "ann", "*", "--group", "anns-1", "--deny", *root) == (
        "deleted ann may not * group anns-1\n"
    )
    braid.ok(*reset)
    assert "rule not found" in braid.fails(1, "rule", "delete", "ann", "read", "--topic", "open*", *root)
    braid.ok("rule", "delete", "ann", "read", "--group", "anns-*", "--key", "ann:*", *root)
    assert "not allowed" in braid.fails(3, *reset)


@pytest.mark.parametrize("noun", ["rule", "user", "quota", "group", "txn", "topic"])
def test_a_list_of_a_node_without_access_control_is_no_error(braid_server_shared: ServerProcess, noun: str) -> None:
    assert Braid(braid_server_shared).ok(noun, "list")


def test_rules_of_a_node_without_access_control(braid_server_shared: ServerProcess) -> None:
    open_to_all = Braid(braid_server_shared)
    assert open_to_all.json("rule", "list", schema="rule-list") == []
    assert "Access control is off" in open_to_all.ok("rule", "list")
    assert "add `auth.rules`" in open_to_all.fails(3, "rule", "add", "ann", "read", "--topic", "t")


def test_names_of_keys_are_told_to_who_may_read_them(braid: Braid, server: ServerProcess, folder: Path) -> None:
    host, port = server.address("mayfly")
    own = {name: ("--url", f"mayfly://{host}:{port}", "--token-file", str(folder / f"{name}.token")) for name in TOKENS}
    for name in ("ann:1", "bob:1", "ann:2", "secret"):
        braid.ok("kv", "set", name, "v", *own["root"])
    assert "not allowed" in braid.fails(3, "kv", "keys", *own["ann"])
    braid.ok("rule", "add", "ann", "read", "--key", "ann:*", *as_(folder, "root"))
    assert braid.ok("kv", "keys", *own["ann"]).split() == ["ann:1", "ann:2"]
    assert braid.json("kv", "keys", *own["root"], schema="kv-keys")["keys"] == ["ann:1", "bob:1", "ann:2", "secret"]
    with kv.connect(f"mayfly://:{TOKENS['ann']}@{host}:{port}") as store:
        assert store.scan(count=2).after == b"", "its last name is none that ann may read"
    braid.ok("rule", "delete", "ann", "read", "--key", "ann:*", *as_(folder, "root"))


def test_acl_is_another_word_for_it(braid: Braid, folder: Path) -> None:
    root = as_(folder, "root")
    place = ("read", "--group", "acls-*")
    assert braid.ok("acl", "allow", "ann", *place, *root) == "added ann may read group acls-*\n"
    assert braid.ok("acl", "deny", "bob", *place, *root) == "added bob may not read group acls-*\n"
    told = braid.json("acl", "list", *root, schema="rule-list")
    assert told == braid.json("rule", "list", *root, schema="rule-list")
    added = [(row["principal"], row["deny"]) for row in told if row["name"] == "acls-*"]
    assert added == [("ann", False), ("bob", True)]
    assert "rule not found" in braid.fails(1, "acl", "remove", "bob", *place, *root)
    assert braid.ok("acl", "remove", "bob", *place, "--deny", *root) == "deleted bob may not read group acls-*\n"
    assert braid.ok("acl", "remove", "ann", *place, *root) == "deleted ann may read group acls-*\n"
    assert not [row for row in braid.json("acl", "list", *root, schema="rule-list") if row["name"] == "acls-*"]


def test_who_may_not(braid: Braid, folder: Path) -> None:
    for command in (["list"], ["add", "bob", "cluster"], ["delete", "bob", "read", "--topic", "open*"]):
        assert "not allowed" in braid.fails(3, "rule", *command, *as_(folder, "bob"))


def test_what_a_rule_needs(braid: Braid, folder: Path) -> None:
    assert "pass --topic" in braid.fails(2, "rule", "add", "bob", "read", *as_(folder, "root"))
