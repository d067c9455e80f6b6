"""The Spark guide names commands and pages that are there. Its blocks run in tests/spark/test_guide.py."""

import re
from pathlib import Path

from click.testing import CliRunner

from braidlog.cli import main

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/guides/spark.md").read_text(encoding="utf-8")


def test_every_command_that_is_named_is_there() -> None:
    commands = re.findall(r"^\$ braid ([a-z -]+)", GUIDE, re.MULTILINE)
    assert len(commands) > 3
    for command in commands:
        words = [word for word in command.split() if word in ("dev", "pipeline", "init", "run", "status", "spark")]
        assert CliRunner().invoke(main, [*words, "--help"]).exit_code == 0
    listed = CliRunner().invoke(main, ["pipeline", "--help"]).output
    for name in re.findall(r"^\| `(run|status|replay|backfill|compact)", GUIDE, re.MULTILINE):
        assert re.search(rf"^  {name}\b", listed, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", GUIDE):
        assert (ROOT / "docs/guides" / target).exists(), target
