"""Every block of the key-value guide runs, against a node on free ports, and says what the guide says."""

import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from braidlog.cli import main
from braidlog.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/guides/kv.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SAID = """\
b'hello' 60
1 11
b'first' [b'second']
{b'born': b'1815', b'field': b'mathematics'}
None
b'999'
100
"""


def test_every_block_runs(braid_server: ServerProcess) -> None:
    said = ""
    for language, body in BLOCK.findall(GUIDE):
        if language == "console":
            assert body == "$ braid dev\n", "a command that is run by nobody"
            continue
        assert language == "python", f"a block in {language!r} is run by nobody"
        code = body.replace("127.0.0.1:7275", f"127.0.0.1:{braid_server.ports['mayfly']}")
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{body}\n{done.stderr}"
        said += done.stdout
    assert said == SAID


def test_every_command_that_is_named_is_there() -> None:
    listed = CliRunner().invoke(main, ["kv", "--help"]).output
    commands = re.search(r"`(get set [a-z\s]+)`", GUIDE)
    assert commands is not None
    for command in commands[1].split():
        assert re.search(rf"^  {command}\b", listed, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", GUIDE):
        assert (ROOT / "docs/guides" / target).exists()
