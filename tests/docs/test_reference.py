"""The page of commands is what the commands say now. `make reference` writes it anew."""

from pathlib import Path

from braidlog.cli.reference import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make reference"
