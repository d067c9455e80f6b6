"""docs/comparison.md: what we have is shown by a test that exists, what others have by a page; little is lacking."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest
from tests.docs.transcript import ROOT

LACKS_MAX: Final = 10
TEXT = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
SOURCES = dict(re.findall(r"^- \[(\w+)\]: (.+)$", TEXT, re.MULTILINE))


def _rows() -> list[list[str]]:
    lines = [line for line in TEXT.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0]]


ROWS = _rows()


def _tests_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_ours_is_shown_or_explained(row: list[str]) -> None:
    what, ours, *_ = row
    if ours.startswith("lacks: "):
        assert len(ours.split()) > 8, f"{what}: in a sentence"
        return
    assert ours.startswith("has: "), what
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ours)
    assert named, what
    for file, test in named:
        assert test in _tests_in(ROOT / file), f"{file}::{test}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_others_are_cited(row: list[str]) -> None:
    assert len(row) == 5
    for cell in row[2:]:
        cited = re.findall(r"\[(\w+)\]", cell)
        assert cell == "not documented" or (cited and set(cited) <= set(SOURCES)), cell


def test_sources_have_a_version_and_a_page_and_are_used() -> None:
    for name, source in SOURCES.items():
        assert re.search(r"\d+\.[\dx]+|without a version|branch main|older README", source), name
        assert "](https://" in source, name
        assert any(f"[{name}]" in cell for row in ROWS for cell in row[2:]), name


def test_little_is_lacking() -> None:
    lacking = {row[0] for row in ROWS if row[1].startswith("lacks")}
    assert 0 < len(lacking) <= LACKS_MAX
    assert len(ROWS) > 60
