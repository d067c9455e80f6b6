"""A maximum that several folders share is in `model/limits.py`; any other is beside its owner, and none is defined twice."""

import re
from pathlib import Path

import pytest

import braidlog
from braidlog.model import limits

ROOT = Path(braidlog.__file__).parent
NAMES = sorted(name for name in vars(limits) if name.isupper())
SOURCES = {path: path.read_text() for path in ROOT.rglob("*.py") if path != Path(limits.__file__)}


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_limit_is_shared(name: str) -> None:
    folders = {path.relative_to(ROOT).parts[0] for path, text in SOURCES.items() if re.search(rf"\b{name}\b", text)}
    assert len(folders) > 1, f"{name} is used in {folders} only: it belongs beside its owner"


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_limit_is_defined_once(name: str) -> None:
    bare = name.removeprefix("KV_")
    value = getattr(limits, name)
    again = [
        str(path.relative_to(ROOT))
        for path, text in SOURCES.items()
        for said in re.findall(rf"^_?(?:KV_|\w+_)?{bare}\b[^=\n]*= ([\d_* ]+)$", text, re.MULTILINE)
        if _product(said) == value
    ]
    assert not again, f"{name} is in model/limits.py, and a number in {again}"


def _product(said: str) -> int:
    """The value of `64 * 1024`."""
    result = 1
    for factor in said.split("*"):
        result *= int(factor or "1")
    return result
