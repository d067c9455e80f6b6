"""The pages of docs/reference are what commands, settings, metrics and errors say now. `make reference` writes them anew."""

import re
from pathlib import Path

import pytest
from tests.reference.commands import page
from tests.reference.pages import PAGES

from braidlog.model.errors import Reason
from braidlog.server.config import load_config

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


@pytest.mark.parametrize(("name", "make"), [("cli", page), *PAGES.items()])
def test_the_page_is_current(name: str, make: object) -> None:
    assert callable(make)
    assert (REFERENCE / f"{name}.md").read_text(encoding="utf-8") == make(), "run: make reference"


def test_no_setting_and_no_error_is_left_out() -> None:
    """By another list than the one that the page is made of: what `braid config show` prints."""
    settings = (REFERENCE / "settings.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z_.0-9]+)`", settings, re.MULTILINE)) == set(load_config(None, {}, {}).flat())
    errors = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    assert all(f"| {reason.name.lower().replace('_', ' ')} |" in errors for reason in Reason)
