"""Every block of the Spark guide runs, as one program against a node on free ports, and says what it should."""

import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from tests.debian import have

from braidlog.cli import main
from braidlog.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/guides/spark.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_runs(braid_server: ServerProcess) -> None:
    have("java", "openjdk-17-jre-headless")
    code = "\n".join(body for language, body in BLOCK.findall(GUIDE) if language == "python")
    for dialect, port in (("kafka", 9092), ("mayfly", 7275)):
        code = code.replace(f"127.0.0.1:{port}", f"127.0.0.1:{braid_server.ports[dialect]}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["rows: 100", "written: 100", "keys: 7", "in the table: 100"]


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
