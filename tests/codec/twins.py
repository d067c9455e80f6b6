# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Both twins of the kernel side by side, and a way to ask the same of each."""

import importlib.util
import shutil
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from braidlog.codec import varint
from braidlog.codec.batch import kernel
from braidlog.codec.columns import records_to_arrow as columns

COMPILER = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def load_plain(path: str) -> ModuleType:
    """A compiled module's source, run as plain Python under another name."""
    source = Path(varint.__file__).parents[1] / f"{path}.py"
    loader = SourceFileLoader(f"braidlog_{source.stem}_plain", str(source))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def twin_of(records: ModuleType, arrow: ModuleType) -> SimpleNamespace:
    """What both modules offer, under one name; compiled only if both are."""
    return SimpleNamespace(
        **vars(records) | {"Columns": arrow.Columns, "COMPILED": records.COMPILED and arrow.COMPILED},
        files=[str(records.__file__), str(arrow.__file__)],
    )


PLAIN = twin_of(load_plain("codec/batch/kernel"), load_plain("codec/columns/records_to_arrow"))
COMPILED = twin_of(kernel, columns)


def require_compiled() -> None:
    """Where there is a compiler, a kernel that is not compiled is a failure and no reason to skip."""
    if COMPILED.COMPILED:
        return
    if COMPILER is not None:
        pytest.fail(f"{COMPILER} is here, but the kernel is not compiled: run `make setup`")
    reason = "no C compiler on this machine: there is only one twin to test"
    print(reason)
    pytest.skip(reason)


def outcome(call: Callable[[], object]) -> object:
    """What a call gives: its value, or its error's type and words. Unknown errors go through."""
    try:
        return call()
    except (ValueError, TypeError, OverflowError) as error:
        return type(error), str(error)


def buffers(columns):
    """All that finished columns hold, to be compared."""
    columns.finish()
    parts = (columns.key, columns.value, columns.header_lists, columns.header_key, columns.header_value)
    whole = [(p.rows, p.size, p.nulls, bytes(p.validity), bytes(p.ends), bytes(p.data)) for p in parts]
    return columns.rows, bytes(columns.offsets), bytes(columns.timestamps), whole
