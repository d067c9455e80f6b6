"""Coverage-guided fuzzing of one dialect: `python -m tests.wire.fuzzing mlog -runs=1000000`, or `make fuzz` for all.

Seeds are the bytes of the dialect's vectors. Anything but an event of the contract ends the run with the input that did it.
"""

import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import atheris  # installed by `make fuzz`, and by nothing else

SMALLEST = 4


def seeds(dialect: str) -> set[bytes]:
    """Every run of bytes that stands in the dialect's vectors."""
    vectors = import_module(f"tests.wire.{dialect}.vectors")
    folder = Path(vectors.__file__ or "").with_name("vectors")
    if dialect == "mlog":
        return set(_bytes_in(vectors.load(*(path.stem for path in folder.glob("*.vec")))))
    return set(_bytes_in([value for name, value in vars(vectors).items() if name.isupper()]))


def _bytes_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        if len(value) >= SMALLEST:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _bytes_in(item)
    elif hasattr(value, "__struct_fields__"):
        yield from _bytes_in([getattr(value, name) for name in value.__struct_fields__])
    elif type(value).__module__.startswith("tests."):
        yield from _bytes_in(list(vars(value).values()))


def main() -> None:
    dialect = sys.argv[1]
    with atheris.instrument_imports(include=[f"braidlog.wire.{dialect}", "braidlog.codec"]):
        fuzz_one = import_module(f"tests.wire.{dialect}.fuzz").fuzz_one
    with tempfile.TemporaryDirectory() as corpus:
        found = seeds(dialect)
        assert found, f"no seeds in the vectors of {dialect}"
        for number, seed in enumerate(sorted(found)):
            (Path(corpus) / f"{number:05d}").write_bytes(seed)
        print(f"{dialect}: {len(found)} seeds", file=sys.stderr)
        atheris.Setup([sys.argv[0], *sys.argv[2:], corpus], fuzz_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
