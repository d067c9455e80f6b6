"""Every block of the README runs: what it says to type is typed here, and prints what the page shows."""

import os
import re
import signal
import subprocess
from pathlib import Path

from tests.debian import have
from tests.docs.transcript import ROOT, Desk, blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES_MAX = 200


def test_every_block_of_the_readme_runs(tmp_path: Path, spark_home: Path) -> None:
    """In the order of the page, in one empty folder, with the node that the page starts."""
    have("java", "openjdk-17-jre-headless")
    printed = ""
    with Desk(tmp_path) as desk:
        for block in blocks(README):
            if block.is_run:
                printed += desk.do(block)
            else:
                assert block.body in ("$ make dev\n", "$ make test\n"), f"run by nobody: {block.body}"
    assert "clicks b'demo-" in printed
    assert "orders/2 at 0\nb'one book'" in printed
    assert "300 rows" in printed
    assert "0 b'ada' b'{\"page\": \"/\"}' {'source': b'web'}" in printed


def test_make_dev_runs_a_node(tmp_path: Path) -> None:
    """Until somebody presses Ctrl-C."""
    doors = ("CURSUS", "MLOG", "RUSTLOG", "FLUX", "KAFKA", "MAYFLY")
    free = {
        **{f"BRAID_LISTENERS__{name}__PORT": "0" for name in doors},
        "BRAID_ADMIN__PORT": "0",
        "BRAID_REGISTRY__PORT": "0",
    }
    said = ""
    with subprocess.Popen(
        ["make", "dev"],
        cwd=ROOT,
        env={**os.environ, **free, "BRAID_DATA_DIR": str(tmp_path / "node")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                os.killpg(process.pid, signal.SIGINT)
        process.wait(60)  # what make answers to an interrupt is make's affair
    assert "rustlog://" in said
    assert "Ctrl-C" in said


def test_ci_runs_the_command_of_the_readme() -> None:
    commands = [
        line
        for line in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == ["make test"]
    assert "$ make test" in README


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) < LINES_MAX
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
