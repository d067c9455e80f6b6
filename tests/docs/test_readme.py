"""Every block of the README runs: what it says to type is typed here."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from braidlog.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent


ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}


def _run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _run_node(command: list[str], data_dir: Path) -> str:
    """A command that runs until it is stopped: wait until it says it is ready, then press Ctrl-C."""
    free = {f"BRAID_LISTENERS__{name}__PORT": "0" for name in ("CURSUS", "MLOG", "RUSTLOG", "FLUX", "KAFKA", "MAYFLY")}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**ENVIRONMENT, **free, "BRAID_DATA_DIR": str(data_dir)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                os.killpg(process.pid, signal.SIGINT)
        process.wait(60)  # what make answers to an interrupt is make's affair
    assert "Ctrl-C" in said
    _run(["braid", "log", "verify", str(data_dir)], ROOT)
    return said


def test_every_block_of_the_readme_runs(tmp_path: Path, braid_server: ServerProcess) -> None:
    """In the order of the page, in one empty folder; `make` verbs in the repository.

    What connects to the node of `make dev` finds one on free ports here.
    """
    ran = []
    for language, body in BLOCK.findall(README):
        if language == "python":
            code = body.replace("127.0.0.1:9092", f"127.0.0.1:{braid_server.ports['kafka']}")
            ran.append(_run([sys.executable, "-c", code], tmp_path))
            continue
        assert language == "console", f"a block in {language!r} is run by nobody"
        for line in body.splitlines():
            if line == "$ make test":
                continue  # this very run; test_ci_runs_the_command_of_the_readme holds it to that
            if line == "$ make dev":
                ran.append(_run_node(line[2:].split(), tmp_path / "node"))
            elif line.startswith("$ make "):
                ran.append(_run(line[2:].split(), ROOT))
            elif line.startswith("$ "):
                ran.append(_run(["bash", "-c", line[2:]], tmp_path))
    assert len(ran) >= 6
    assert "rustlog://" in "".join(ran)
    assert "orders/2 at 0\nb'one book'" in "".join(ran)
    assert "0 b'ada' b'{\"page\": \"/\"}' {'source': b'web'}" in "".join(ran)


def test_ci_runs_the_command_of_the_readme() -> None:
    commands = [
        line
        for line in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == ["make test"]
    assert "$ make test" in README


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
