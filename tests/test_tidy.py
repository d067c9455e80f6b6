"""The repository keeps its own rules: folders as on the map, files where their names say, words that a stranger would search for.

Checks with a rule of their own have a twin that shows them something wrong and expects it to be found.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests import where

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "braidlog"
TESTS = ROOT / "tests"
LINES_MAX = 900
REASON = re.compile(r"Over \d+ lines because ", re.IGNORECASE)
"""How the head of a long file begins its reason."""

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


# ── Tests are found ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def has_a_place(test: Path, source: Path = SOURCE) -> bool:
    """Whether a test file, named from tests/ on, is in a folder that mirrors one of the source, or in one of `FOLDERS`."""
    folder = test.parent
    return folder == Path() or folder.parts[0] in FOLDERS or folder.as_posix() in FOLDERS or (source / folder).is_dir()


def test_tests_are_where_the_source_is() -> None:
    tests = [path.relative_to(TESTS) for path in tracked() if path.name.startswith("test_") and TESTS in path.parents]
    assert [str(test) for test in tests if not has_a_place(test)] == []


def test_every_module_has_a_test() -> None:
    assert [str(module) for module in where.modules() if not where.tests_of(module)] == []


def test_tests_that_are_named_for_a_module_exist() -> None:
    assert {test for test in where.COVERED.values() if not (ROOT / test).is_file()} == set()


def test_a_test_of_no_folder_is_noticed() -> None:
    assert has_a_place(Path("storage/log/test_partition_log.py"))
    assert not has_a_place(Path("attic/test_crashes.py"))


def test_the_closest_test_comes_first() -> None:
    module = Path("src/braidlog/storage/log/partition_log.py")
    assert where.tests_of(module)[0] == Path("tests/storage/log/test_partition_log.py")


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


# ── Words that this field does not use ──────────────────────────────────────────────────────────────────────────────

FORBIDDEN = {
    r"(?:is|are|was) no more": "no longer",
    r"(?:is|are|was|were) (?:not )?there": "exists",
    r"all the same": "anyway",
    r"anew": "again, from the start",
    r"anybody": "any client",
    r"are asked": "receive a request",
    r"asked for": "requested",
    r"at once": "immediately, together",
    r"below strength": "under-replicated",
    r"beside the loop": "off the event loop",
    r"comes? true": "is committed",
    r"cut off": "closed, truncated",
    r"doors?": "listener, port, protocol",
    r"everybody": "all clients",
    r"everyone": "all clients",
    r"for ever": "forever",
    r"for want of": "without",
    r"gives? way": "yields",
    r"go(?:es)? on": "continues",
    r"goes away": "disconnects",
    r"gone on": "continued",
    r"ha(?:s|ve) (?:its|their) turn": "runs",
    r"had back": "restored",
    r"hand(?:s|ed)? on": "forward",
    r"hears? of": "is notified of",
    r"in one go": "in one step",
    r"in so many words": "explicitly",
    r"is asked": "receives a request",
    r"it is no": "it is not a",
    r"keeps? (?:an )?account": "counts",
    r"lets others": "yields",
    r"lets? go": "release, close, expire",
    r"looked at": "read, inspected",
    r"looks? at": "reads, inspects",
    r"made known": "registered",
    r"meanwhile": "during this",
    r"mended": "repaired",
    r"mends?": "repair",
    r"nobody": "no client, no node",
    r"now and then": "periodically",
    r"on and on": "continuously",
    r"on the move": "being reassigned",
    r"put aside": "quarantined",
    r"put(?:s|ting)? right": "repair",
    r"refuses to know": "does not handle",
    r"so far as": "as far as",
    r"so many": "the number",
    r"so much": "the amount",
    r"somebody": "the noun",
    r"someone": "the noun",
    r"speaks? of": "describes",
    r"stands? (?:below|above|here)": "is below",
    r"strangers?": "unauthenticated client",
    r"take[sn]? for dead": "fenced",
    r"taken for": "mistaken for, treated as",
    r"takes? part": "joins",
    r"telling": "reporting",
    r"tells?": "reports, sends, notifies",
    r"told": "reported, sent, notified",
    r"was asked": "received a request",
    r"what is left of": "the rest of",
    r"who (?:it|one) is": "its principal",
    r"who asked": "the caller",
    r"who asks": "the caller",
    r"who they are": "their principals",
    r"whoever": "the noun: producer, follower, caller",
    r"word for word": "verbatim",
    r"worth (?:its|a) while": "useful",
}
"""Words and phrases that docstrings, comments, errors, log lines, helps and templates do not use, and what to say instead."""
OLD_NAMES = frozenset(
    (
        "Abandonable",
        "Around",
        "BegunEpochs",
        "Carrying",
        "CopyAnew",
        "EpochBegun",
        "FairTurns",
        "FirstBytes",
        "Gatekeeper",
        "HandingOver",
        "Hosting",
        "Intake",
        "KeyTold",
        "LeafTold",
        "LogPair",
        "LoopWorld",
        "Making",
        "NodeReplicas",
        "Outbox",
        "Owed",
        "Patient",
        "ReplicatedPartition",
        "ReplicatedSlot",
        "SlotPair",
        "Sparing",
        "StartAnew",
        "Strangers",
        "TellEnd",
        "World",
        "begin_anew",
        "breathe",
        "come_true",
        "conclude",
        "hands_on",
        "led_anew",
        "lone_request",
        "made_durable",
        "take_part",
        "when_cut",
    )
)
"""Names that were replaced by the field's terms."""
_FORBIDDEN = re.compile(rf"\b(?:{'|'.join(FORBIDDEN)})\b", re.IGNORECASE)


def prose(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """The comments and strings of a module, or the lines of a template, without code in backticks, and their lines."""
    if path.suffix != ".py":
        yield from enumerate((re.sub(r"\{[{%#].*?[}%#]\}", "", line) for line in text.splitlines()), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            plain = re.sub(r"`[^`]*`", "", token.string)
            if plain.lower().startswith(("f", "rf", "fr")):
                plain = re.sub(r"\{[^{}]*\}", "", plain)
            yield from enumerate(plain.splitlines(), token.start[0])


def forbidden(path: Path, text: str) -> list[str]:
    """What a file says in words of `FORBIDDEN`, by line. A string of a single word is data, and no prose."""
    return [
        f"{line}: {found.group()} ({said.strip()[:80]})"
        for line, said in prose(path, text)
        if " " in said.strip()
        for found in _FORBIDDEN.finditer(said)
    ]


def test_prose_is_plain() -> None:
    found = {
        str(path.relative_to(ROOT)): forbidden(path, text)
        for path, text in texts(".py", ".html")
        if SOURCE in path.parents
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_old_names_are_gone() -> None:
    for path, text in texts(".py"):
        if SOURCE in path.parents:
            assert OLD_NAMES.isdisjoint(names_in(path, text)), path.relative_to(ROOT)


def test_a_forbidden_word_is_noticed() -> None:
    assert len(FORBIDDEN) >= 60
    text = '"""Whoever asks is told."""\nX = "told"\nY = f"{told} bytes"\n# `told` is a name\n'
    assert [line.partition(" (")[0] for line in forbidden(Path("module.py"), text)] == ["1: Whoever", "1: told"]
    assert forbidden(Path("page.html"), "<p>Nobody reads now.</p>") == ["1: Nobody (<p>Nobody reads now.</p>)"]


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
