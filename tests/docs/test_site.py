"""The pages of docs/ are a site: every link and every anchor leads somewhere, and nothing in it comes from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.transcript import ROOT

FETCHED = re.compile(r"""<(?:script|link|img|iframe|source)[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"' >]+)""")
"""What a browser would load from another machine, without being asked."""


def build(config: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(out),
    ]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, capture_output=True, text=True, env=quiet, check=False)


def page_of(source: Path) -> Path:
    """Return the page that mkdocs makes of a file: a README is the index of its folder."""
    return source.with_name("index.html") if source.name == "README.md" else source.with_suffix(".html")


def test_every_page_is_in_it_and_nothing_is_fetched(tmp_path: Path) -> None:
    done = build(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {page_of(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.html")}
    assert pages - made == set()
    for path in tmp_path.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert FETCHED.findall(text) == [], path.name
        assert "<p>```" not in text, f"{path.name}: a block is shown as text"


def test_a_link_to_nowhere_and_a_fetched_script_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Here\n\n[there](#nowhere)\n", encoding="utf-8")
    text = re.sub(
        r"^(nav|hooks):(.|\n)*?(?=^\w|\Z)", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    (tmp_path / "mkdocs.yml").write_text(text, encoding="utf-8")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "out")
    assert (done.returncode != 0, "nowhere" in done.stderr) == (True, True)
    assert FETCHED.findall('<script defer src="https://example.com/a.js">') == ["https://example.com/a.js"]
    assert FETCHED.findall('<a href="https://example.com/">') == []
