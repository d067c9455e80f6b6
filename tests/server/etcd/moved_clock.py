"""`make etcd-clock`: an etcd whose wall clock moves, built from the module of packaging/etcd with another `time.Now`.

Five seconds after its start it is ten minutes ahead, five seconds later ten minutes behind; what counts by the monotonic clock is
not moved, as on a machine whose clock is set. A program in Go asks the kernel itself, so that no library that is loaded before it
could do this.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

AWAY_SECONDS = 600
MODULE = Path(__file__).parents[3] / "packaging/etcd"
TRUE_NOW = "sec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
MOVED_NOW = f"""sec, nsec, mono := runtimeNow()
	if since := mono - startNano; since > 10e9 {{
		sec -= {AWAY_SECONDS}
	}} else if since > 5e9 {{
		sec += {AWAY_SECONDS}
	}}
	if mono == 0 {{"""


def build(program: Path) -> None:
    root = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()
    source = Path(root) / "src/time/time.go"
    text = source.read_text()
    if text.count(TRUE_NOW) != 1:
        raise SystemExit(f"{source} is not what is known here: see how its Now begins, and say so in {__file__}")
    with tempfile.TemporaryDirectory() as folder:
        moved, overlay = Path(folder) / "time.go", Path(folder) / "overlay.json"
        moved.write_text(text.replace(TRUE_NOW, MOVED_NOW))
        overlay.write_text(json.dumps({"Replace": {str(source): str(moved)}}))
        command = ["go", "build", "-trimpath", "-overlay", str(overlay), "-o", str(program.absolute()), "."]
        subprocess.run(command, cwd=MODULE, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
