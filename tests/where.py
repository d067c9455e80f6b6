"""Which tests cover a module: `make where FILE=src/braidlog/storage/files.py` prints them, the closest first.

1. The test file of the same name in the same folder of `tests/`.
2. Test files that import the module, those of the same folder first.
3. For a module that no test imports: the tests that `COVERED` names, or else those of its folder.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("src/braidlog")
COVERED = {
    "cli/acl": "tests/cli/rule/test_rule.py",
    "cli/pipeline": "tests/spark/pipeline/test_commands.py",
    "cli/profile": "tests/cli/terminal/test_profiles.py",
    "cli/spark": "tests/spark/test_job_check.py",
    "cli/wire/decode.py": "tests/tools/wire/test_decode.py",
    "cli/wire/dissector.py": "tests/tools/wire/test_dissector.py",
    "cli/wire/fuzz.py": "tests/tools/wire/test_fuzz.py",
    "cli/wire/options.py": "tests/tools/wire/test_send.py",
    "cli/wire/send.py": "tests/tools/wire/test_send.py",
    "cli/wire/tap.py": "tests/tools/wire/test_tap.py",
    "spark/keyvalue": "tests/spark/kv/test_spark.py",
    "worker/job_functions.py": "tests/server/process/test_worker_process.py",
    "worker/segment_scrub.py": "tests/partition/maintenance/test_scrubber.py",
}
"""Modules and folders that are covered by tests of another folder, which run a command or another process."""


@cache
def _tests() -> dict[Path, frozenset[str]]:
    """Each test file, and the modules that it imports."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {}
    for path in map(Path, listed.splitlines()):
        if path.name.startswith("test_") and path.suffix == ".py" and (ROOT / path).exists():
            names: set[str] = set()
            for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                elif isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
            found[path] = frozenset(names)
    return found


def tests_of(module: Path) -> list[Path]:
    """The test files of a module, named from the repository's root; none if nothing covers it."""
    inside = module.relative_to(SOURCE)
    folder = Path("tests") / inside.parent
    named = [path for path in _tests() if path == folder / f"test_{inside.name}"]
    dotted = "braidlog." + ".".join(inside.with_suffix("").parts)
    importing = sorted(
        (path for path, names in _tests().items() if dotted in names and path not in named),
        key=lambda path: (path.parent != folder, path),
    )
    if named or importing:
        return named + importing
    covering = [test for place, test in COVERED.items() if inside.as_posix() == place or inside.is_relative_to(place)]
    if covering:
        return [Path(test) for test in covering]
    return [path for path in sorted(_tests()) if path.parent == folder] or [
        path for path in sorted(_tests()) if path.parent == folder.parent and len(folder.parts) > 2
    ]


def modules() -> list[Path]:
    """Every module of the package, but those that hold no code of their own."""
    return [
        path.relative_to(ROOT)
        for path in sorted((ROOT / SOURCE).rglob("*.py"))
        if not path.name.startswith("__") and "templates" not in path.parts
    ]


def main(file: str) -> None:
    path = Path(file)
    if not (ROOT / path).is_file() or not path.is_relative_to(SOURCE):
        sys.exit(f"unknown module {file!r}: name a file below {SOURCE}")
    for test in tests_of(path):
        sys.stdout.write(f"{test}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make where FILE=src/braidlog/storage/files.py")
    main(sys.argv[1])
