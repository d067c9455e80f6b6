"""The repository keeps its own rules: folders as on the map, files where their names say, words that a stranger would search for.

Checks with a rule of their own have a twin that shows them something wrong and expects it to be found.
"""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "braidlog"
TESTS = ROOT / "tests"
LINES_MAX = 900
REASON = re.compile(r"Over \d+ lines because ", re.IGNORECASE)
"""How the head of a long file begins its reason."""

WAYS = {
    "audit": "who changed what, by every port",
    "authentication": "the same rules on every port",
    "browser": "pages in a real browser",
    "clients": "clients of others",
    "commands": "whole commands, as typed",
    "consume": "one command in all its forms",
    "connection": "a whole connection",
    "conversations": "requests and answers in order",
    "crashes": "every state a power cut can leave",
    "cross_door": "written through one port, read through the others",
    "damage": "valid frames with bytes changed",
    "decode": "a command of the wire tools, as typed",
    "discovery": "what Spark finds by name",
    "disk_random": "the simulated disk against a list in memory",
    "faults": "errors of disk and network",
    "foreign": "our client against the behaviour of another server",
    "follow": "reading while somebody writes",
    "deployments": "one job, wherever it runs",
    "frames": "data frames in and out",
    "fuzz": "random bytes",
    "guide": "the examples of a guide",
    "hostile": "clients that mean harm",
    "inbox_lines": "one class, read by lines",
    "keyvalue": "keys and values through a whole server",
    "kcat": "a program of others beside ours",
    "kill": "kill -9 of a real process",
    "kills": "kill -9 of real processes",
    "leaders": "where clients are sent, on every port",
    "life": "from start to stop",
    "limits": "one too many of what a node keeps",
    "loop": "the largest request of every operation, and how long it holds up the others",
    "locking": "two processes, one folder",
    "log_model": "random operations against a list in memory",
    "lone_requests": "the short way of a request that comes alone, beside the long one",
    "machine": "commands that look at this machine",
    "main": "the outermost command",
    "manners": "what all pages do: sort, filter, be used by keyboard, stand out",
    "memory": "bytes held under load",
    "metrics": "the figures of a running node",
    "model": "random operations against a dictionary",
    "object_stores": "stores of others, on loopback",
    "oracles": "the codecs of others",
    "order": "answers that some order of all changes must explain",
    "page": "a page of docs/ against the tables it is made of",
    "parts": "small modules together",
    "planted": "bugs put in on purpose, each found by its test",
    "process": "a real process",
    "published_client": "a published client, unmodified",
    "records": "records as they are stored and shown",
    "replicated": "a log that is one replica of several",
    "restart": "stop and start again",
    "receive_buffer": "one method, driven by a socket",
    "round_trip": "written and read back",
    "rows": "one row layout",
    "rules": "retry and error rules of all drivers",
    "rest_catalog": "Iceberg's own REST catalog, in Java",
    "schemas": "JSON output against its schemas",
    "sdist": "the test suite of another project",
    "tools": "command-line tools of another project",
    "served": "every request of a table is served",
    "server": "a server with all its ports",
    "settings": "options in all their forms",
    "socket": "over a real socket",
    "spark": "a real Spark",
    "staging_kill": "kill -9 between the steps of a staged batch",
    "streams": "answers that do not end",
    "table": "every row of a dialect's table",
    "threads": "many threads at once",
    "three_nodes": "three nodes that are one cluster, over a real etcd",
    "tls": "over TLS",
    "vectors": "golden bytes",
    "send": "a command of the wire tools, as typed",
    "tap": "a command of the wire tools, as typed",
}
"""Test files named after a way of testing instead of a module, and what each of them does."""
FOLDERS = {
    "attack": "a whole node under attack, its clients' histories checked",
    "docs": "the blocks of README and guides, executed",
    "histories": "what clients saw, and the checkers that judge it",
    "interop": "clients and test suites of others",
    "nemesis": "a cluster of real processes under faults, its clients' histories checked",
    "samples": "data folders of earlier versions",
    "simulation": "whole clusters on virtual time",
    "spark/kv": "short for spark/keyvalue",
}
"""Folders of tests that mirror no folder of the source, and why."""

RIDDLES = {
    "elected": "classic group",
    "elections": "classic service",
    "lane": "partition sender",
    "patience": "retry",
    "seat": "member",
    "seats": "messages",
    "shelf": "partition files",
    "survey": "inspect",
    "telling": "progress",
    "untold": "unreported",
}
"""Words that no module, class or function has in its name, and what to say instead."""
RIDDLES_ALONE = {
    "fold": "rebuild",
    "heard": "progress",
    "kept": "registry",
    "room": "byte budget",
    "share": "partition fetcher",
    "told": "progress",
}
"""The same for a name that is nothing but this word."""

PRIVATE = re.compile(
    r"\bthe seed(?!s? of|ed)\b|\bseed 00\d\b|\b(?:protocols|reliability|conventions|performance)\.md\b|\.\./shared\b",
    re.IGNORECASE,
)
"""Documents that are not in this repository."""


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the repository, and those about to become one."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in listed.splitlines() if (path := ROOT / name).is_file())


def texts(*suffixes: str) -> Iterator[tuple[Path, str]]:
    for path in tracked():
        if path.suffix in suffixes and path != Path(__file__):
            yield path, path.read_text(encoding="utf-8")


# ── The map ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def folders_on_the_map(page: str) -> set[str]:
    return {found.partition("/")[0] for found in re.findall(r"^\| `([a-z]+)/[^`]*` \|", page, re.MULTILINE)}


def test_the_map_shows_the_folders() -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    there = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert folders_on_the_map(page) == there


def test_a_folder_that_is_not_there_is_noticed() -> None:
    assert folders_on_the_map("| `wire/<dialect>/` | … |\n| `attic/` | old things |\n") == {"wire", "attic"}


# ── Tests mirror the source ───────────────────────────────────────────────────────────────────────────────────────────────────


def is_named_after(test: Path, source: Path = SOURCE) -> bool:
    """Whether a test file, named from tests/ on, has the name of a module or folder beside it, or of its own folder."""
    folder, name = test.parent, test.stem.removeprefix("test_")
    return name == folder.name or (source / folder / f"{name}.py").exists() or (source / folder / name).is_dir()


def has_a_place(test: Path, source: Path = SOURCE) -> bool:
    """Whether a test file, named from tests/ on, stands where somebody who knows the source looks for it."""
    folder = test.parent
    if folder == Path() or folder.parts[0] in FOLDERS or folder.as_posix() in FOLDERS:
        return True
    if not (source / folder).is_dir():
        return False
    return is_named_after(test, source) or test.stem.removeprefix("test_") in WAYS


def files_of_tests() -> list[Path]:
    return [path.relative_to(TESTS) for path in tracked() if path.name.startswith("test_") and TESTS in path.parents]


def test_tests_mirror_the_source() -> None:
    assert [str(test) for test in files_of_tests() if not has_a_place(test)] == []


def test_every_way_of_testing_is_used() -> None:
    used = {test.stem.removeprefix("test_") for test in files_of_tests() if not is_named_after(test)}
    assert set(WAYS) - used == set()


def test_a_test_of_nothing_is_noticed() -> None:
    assert has_a_place(Path("storage/test_partition.py"))
    assert has_a_place(Path("storage/test_crashes.py"))
    assert not has_a_place(Path("storage/test_attic.py"))
    assert not has_a_place(Path("attic/test_crashes.py"))


# ── Sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_too_long(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) > LINES_MAX and not REASON.search(" ".join(lines[:25]))


def test_long_files_say_why() -> None:
    sources = [(path, text) for path, text in texts(".py") if SOURCE in path.parents]
    assert [str(path.relative_to(ROOT)) for path, text in sources if is_too_long(text)] == []


def test_a_long_file_is_noticed() -> None:
    assert is_too_long("x = 1\n" * 901)
    assert not is_too_long(
        '"""One unit.\n\nOver 900 lines because the compiler inlines within a unit only.\n"""\n' * 901
    )


# ── What is cited exists ──────────────────────────────────────────────────────────────────────────────────────────────────────

CITED = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md|lua|html))`")
OF_READERS = frozenset(("job.py", "test_it.py", "conftest.py", "transforms.py", "main.go"))
"""Files that a guide tells its readers to write."""


def missing(text: str, names: frozenset[str]) -> list[str]:
    """Files in backticks that are no file of the repository, from whatever folder on they are named."""
    return [name for name in CITED.findall(text) if name not in names and name not in OF_READERS]


@cache
def endings() -> frozenset[str]:
    """Every file of the repository, named from each of its folders on."""
    parts = [path.relative_to(ROOT).parts for path in tracked()]
    return frozenset("/".join(each[at:]) for each in parts for at in range(len(each)))


def test_files_that_are_cited_exist() -> None:
    found = {str(path.relative_to(ROOT)): missing(text, endings()) for path, text in texts(".py", ".md")}
    assert {path: names for path, names in found.items() if names} == {}


def adrs() -> set[int]:
    return {int(path.name[:4]) for path in (ROOT / "docs/adr").glob("[0-9]*.md")}


def test_decisions_that_are_cited_exist() -> None:
    for path, text in texts(".py", ".md"):
        for number in re.findall(r"\bADR (\d+)\b", text):
            assert int(number) in adrs(), f"{path.relative_to(ROOT)} cites ADR {number}"


def test_links_of_all_pages_lead_somewhere() -> None:
    for path, text in texts(".md"):
        for target in re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", text):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


def test_a_missing_file_is_noticed() -> None:
    assert missing(
        "see `storage/attic.py` and `storage/log/partition_log.py`", frozenset(("storage/log/partition_log.py",))
    ) == ["storage/attic.py"]


# ── Steps give the same twice ─────────────────────────────────────────────────────────────────────────────────────────────────


def unordered(text: str) -> list[int]:
    """Lines that make a set, or order by address: what is iterated in another order in the next process."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset" | "hash" | "id")):
                found.append(node.lineno)
    return found


def test_decisions_do_not_depend_on_the_order_of_sets() -> None:
    for path in (SOURCE / "replication").glob("*.py"):
        assert unordered(path.read_text(encoding="utf-8")) == [], path.relative_to(ROOT)


def test_an_unordered_decision_is_noticed() -> None:
    text = "a = {1, 2}\nb = {x for x in a}\nc = set(a)\nd = {1: 2}\ne = sorted(d)\nf = hash(d)\n"
    assert unordered(text) == [1, 2, 3, 6]


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def words(name: str) -> list[str]:
    """`partition_fetcher`, `PartitionFetcher` → partition, fetcher."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def riddles(names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        parts = words(name)
        if any(word in RIDDLES for word in parts) or (len(parts) == 1 and parts[0] in RIDDLES_ALONE):
            found.append(name)
    return found


def names_in(path: Path, text: str) -> Iterator[str]:
    yield path.stem
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_names_are_plain() -> None:
    for path, text in texts(".py"):
        if SOURCE in path.parents:
            assert riddles(names_in(path, text)) == [], path.relative_to(ROOT)


def test_a_riddle_is_noticed() -> None:
    assert riddles(["Lane", "elected_group", "share", "share_count", "has_room", "Room", "member"]) == [
        "Lane",
        "elected_group",
        "share",
        "Room",
    ]


def test_nothing_cites_what_only_we_have() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path, text in texts(
            ".py", ".md", ".vec", ".txt", ".wire", ".toml", ".lua", ".go", ".java", ".html", ".json"
        )
        for number, line in enumerate(text.splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("line", ["as the seed says", "Source: seed 002", "(protocols.md, rustlog)"])
def test_a_private_reference_is_noticed(line: str) -> None:
    assert PRIVATE.search(line)


@pytest.mark.parametrize("line", ["print the seeds of", "a random seed", "--seed 7", "seeded from the vectors"])
def test_random_seeds_are_no_reference(line: str) -> None:
    assert not PRIVATE.search(line)


# ── What a service needs is given to its constructor ──────────────────────────────────────────────────────────────────────────

COMPOSED = ("server", "broker", "partition")
DATA = {"Struct", "NamedTuple", "dataclass", "Enum", "StrEnum", "IntEnum", "IntFlag", "Exception"}
ATTACHED = {
    "log.settings": "a topic's settings change while its log is open",
    "partition.before_cut": "the state that is made from a log is attached when the log opens",
    "partition.followed": "the state that is made from a log is attached when the log opens",
    "shadow.watcher": "a feed watches a log of keys while its node leads the feed",
    "slot.checkpoint": "what is under way, until it ends",
    "slot.watcher": "a feed watches a log of keys while its node leads the feed",
    "turn.answer": "what the client gets, when it is known",
    "turn.running": "what is under way, until it ends",
    "waiting.answer": "what a node was asked, when it is answered",
}
"""Attributes that other modules set after construction, by what holds them, and why none is a part that comes late."""


def mentioned(*nodes: ast.AST) -> set[str]:
    every = [each for node in nodes for each in ast.walk(node)]
    return {each.id for each in every if isinstance(each, ast.Name)} | {
        each.attr for each in every if isinstance(each, ast.Attribute)
    }


def types_of_parts(trees: Iterable[ast.Module]) -> set[str]:
    """Names of classes that do something, other than to hold data, and of what can be called."""
    found = {"Callable"}
    for node in (each for tree in trees for each in ast.walk(tree)):
        match node:
            case ast.ClassDef(name, bases) if not DATA & mentioned(*bases, *node.decorator_list):
                found |= set() if name.endswith(("Error", "Fault")) else {name}
            case ast.Assign([ast.Name(name)], ast.Subscript(ast.Name("Callable"))):
                found.add(name)
    return found


def parts_of(tree: ast.Module, types: set[str]) -> set[str]:
    """Attributes that the classes of a module hold their parts in, as their constructors declare them."""
    found = set()
    constructors = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    for constructor in constructors:
        arguments = [*constructor.args.args, *constructor.args.kwonlyargs]
        given = {each.arg: each.annotation for each in arguments if each.annotation is not None}
        for node in ast.walk(constructor):
            match node:
                case ast.AnnAssign(ast.Attribute(ast.Name("self"), name), kind):
                    declared = [(name, kind)]
                case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Name(argument)) if argument in given:
                    declared = [(name, given[argument])]
                case _:
                    declared = []
            found |= {
                name for name, kind in declared if mentioned(ast.parse(ast.unparse(kind).replace("'", ""))) & types
            }
    return found


def late_parts(sources: dict[str, str]) -> list[str]:
    """Where a module of `COMPOSED` sets a part of an object whose class is another module's. Registries may be filled."""
    trees = {path: ast.parse(text) for path, text in sources.items()}
    types = types_of_parts(trees.values())
    parts = {path: parts_of(tree, types) for path, tree in trees.items()}
    every = set().union(*parts.values())
    found = []
    for path, tree in trees.items():
        assigned = (each for each in ast.walk(tree) if isinstance(each, ast.Assign) and path.startswith(COMPOSED))
        for target in (each for node in assigned for each in node.targets):
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if not isinstance(each, ast.Attribute) or ast.unparse(each.value) == "self":
                    continue
                name = ".".join(ast.unparse(each).split(".")[-2:])
                if each.attr in every - parts[path] and name not in ATTACHED:
                    found.append(f"{path}: {ast.unparse(each)}")
    return found


def test_no_part_comes_after_construction() -> None:
    sources = {path.relative_to(SOURCE).as_posix(): text for path, text in texts(".py") if SOURCE in path.parents}
    assert late_parts(sources) == []


def test_a_part_that_comes_late_is_noticed() -> None:
    service = (
        "class Way: ...\n"
        "class Service:\n"
        "    def __init__(self, spawn: Callable[[], None], rate: int) -> None:\n"
        "        self.spawn, self.count = spawn, 0\n"
        "        self.rate = rate\n"
        "        self.stop = spawn\n"
        "        self.way: Way | None = None\n"
    )
    wiring = "services.one.way = Way()\nservices.one.count, services.one.stop = 1, print\nservices.one.rate = 2\n"
    sources = {"broker/service.py": service, "server/wiring.py": wiring}
    assert late_parts(sources) == ["server/wiring.py: services.one.way", "server/wiring.py: services.one.stop"]
