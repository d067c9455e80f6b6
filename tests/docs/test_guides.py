"""Every block of a guide that is marked `run` runs, and prints what the guide shows; links of all guides lead somewhere."""

import re
from pathlib import Path

import pytest
from tests.docs.transcript import GUIDES, Desk, blocks, matches, steps

WHOLE = ("quickstart.md", "testing.md", "embedding.md")
"""Guides in which no command and no program is left out."""
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(GUIDES.glob("*.md"))}


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if any(each.is_run for each in blocks(text))])
def test_marked_blocks_run(name: str, tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        for block in blocks(TEXTS[name]):
            if block.is_run:
                desk.do(block)


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_left_out(name: str) -> None:
    found = blocks(TEXTS[name])
    assert found
    for block in found:
        assert block.is_run or block.language not in ("console", "python"), block.body


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXTS[name]):
        assert (GUIDES / target).exists(), target


def test_the_comparison_can_fail() -> None:
    assert matches(["a", "…", "d"], ["a", "b", "c", "d"])
    assert matches(["a", "…"], ["a"])
    assert matches(["offset …, done"], ["offset 7, done"])
    assert not matches(["a"], ["a", "b"])
    assert not matches(["a", "c"], ["a", "b"])
    assert not matches(["offset …"], ["position 7"])
    assert not matches(["a", "…", "d"], ["a", "b"])
    assert steps("$ one\nout\n$ two\n^C\n")[1].interrupted
    with pytest.raises(AssertionError, match="output of no command"):
        steps("out\n")
