"""Blocks of a guide that are marked `run`, typed as a reader would type them.

    ```console run
    $ braid dev                      runs on, in the background, until the guide ends; its ports are free ones here
    $ braid topic list               is run by a shell; what it prints is compared with what the guide shows, if it shows anything
    TOPIC  PARTITIONS  OFFSETS
    …                                a line of its own: any lines; within a line: any text
    $ braid tail clicks              a command that does not end:
    {"event_id": …
    ^C                               it is interrupted once the lines above have come
    ```
    ```python run
    # test_it.py                     a first line like this one: the block is kept as that file; else it is run
    ```

All blocks of a guide run in order, in one empty folder. 127.0.0.1 with a default port means the node of this guide.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from braidlog.client.schemes import SCHEMES
from braidlog.server.config import AdminConfig, ListenersConfig, RegistryConfig

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"
BLOCK = re.compile(r"^```(\w+)( run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEFAULTS = {**{name: scheme.port for name, scheme in SCHEMES.items()}, "console": AdminConfig().port}
DEFAULTS["schemas"] = RegistryConfig().port
SECONDS_MAX = 600
"""For what hangs, not for what is slow: a busy machine takes minutes to start a Spark."""
ANY = "…"
INTERRUPT = "^C"
NODE = "braid dev"


class Block(NamedTuple):
    language: str
    is_run: bool
    body: str


class Step(NamedTuple):
    """A command and what the guide shows of its output."""

    command: str
    shown: list[str]
    interrupted: bool


def blocks(text: str) -> list[Block]:
    return [Block(language, bool(mark), body) for language, mark, body in BLOCK.findall(text)]


def steps(body: str) -> list[Step]:
    found: list[Step] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:], [], interrupted=False))
            continue
        assert found, f"output of no command: {line!r}"
        if line == INTERRUPT:
            found[-1] = found[-1]._replace(interrupted=True)
        else:
            found[-1].shown.append(line)
    return found


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether the guide shows what was printed; `…` stands for anything, and columns may be wider than those of the guide."""
    wanted = "".join(
        "(?:[^\n]*\n)*?" if line == ANY else re.escape(" ".join(line.split())).replace(re.escape(ANY), "[^\n]*") + "\n"
        for line in shown
    )
    return re.fullmatch(wanted, "".join(f"{' '.join(line.split())}\n" for line in printed)) is not None


class Desk:
    """Where a reader sits: a folder, a shell, and a node once it was started."""

    def __init__(self, folder: Path, seconds_max: float = SECONDS_MAX) -> None:
        self._folder = folder
        self._seconds_max = seconds_max
        self._node: subprocess.Popen[str] | None = None
        self._drain: threading.Thread | None = None
        self._ports: dict[str, int] = {}
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "PYTEST_"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            **{f"BRAID_LISTENERS__{name.upper()}__PORT": "0" for name in ListenersConfig.__struct_fields__},
            "BRAID_ADMIN__PORT": "0",
            "BRAID_REGISTRY__PORT": "0",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._node is not None:
            self._node.send_signal(signal.SIGINT)
            self._node.wait(self._seconds_max)
            assert self._drain is not None
            self._drain.join(self._seconds_max)
            assert self._node.stdout is not None
            self._node.stdout.close()

    def do(self, block: Block) -> str:
        """What was printed."""
        if block.language == "python":
            return self._python(block.body)
        assert block.language == "console", f"nobody knows how to run {block.language}"
        return "".join(self._type(step) for step in steps(block.body))

    def _python(self, body: str) -> str:
        named = re.match(r"# (\w+\.py)\n", body)
        if named is not None:
            (self._folder / named[1]).write_text(self._here(body), encoding="utf-8")
            return ""
        return self._run([sys.executable, "-W", "error", "-c", self._here(body)])

    def _type(self, step: Step) -> str:
        if step.command == NODE:
            return self._start(step)
        if step.interrupted:
            return self._until_shown(step)
        printed = self._there(self._run(["bash", "-c", self._here(step.command)]))
        assert not step.shown or matches(step.shown, printed.splitlines()), f"$ {step.command}\n{printed}"
        return printed

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=self._seconds_max,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}"
        return done.stdout

    def _popen(self, command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # what it starts is killed with it
        )

    def _until_shown(self, step: Step) -> str:
        """As many lines as the guide shows, then an interrupt. What shows fewer, or does not end then, is killed."""
        with self._popen(self._here(step.command)) as process:
            assert process.stdout is not None
            limit = threading.Timer(self._seconds_max, os.killpg, (process.pid, signal.SIGKILL))
            limit.start()
            printed = [process.stdout.readline().rstrip("\n") for _ in step.shown]
            process.send_signal(signal.SIGINT)
            process.communicate()
            limit.cancel()
        assert process.returncode != -signal.SIGKILL, f"$ {step.command} does not end; it printed {printed}"
        assert matches(step.shown, printed), f"$ {step.command}\n{printed}"
        return "".join(f"{line}\n" for line in printed)

    def _start(self, step: Step) -> str:
        """The node says where it is; the guide's readers have its default ports."""
        assert self._node is None, "one node is enough"
        self._node = self._popen(step.command)
        printed = list(self._announced(self._node))
        self._drain = threading.Thread(target=self._node.stdout.read if self._node.stdout else list)
        self._drain.start()
        for line in printed:
            if (found := re.match(r" *(\w+)\S* .*127\.0\.0\.1:(\d+)/?$", line)) is not None:
                self._ports[found[1]] = int(found[2])
        self._environment["BRAID_SERVER"] = f"kafka://127.0.0.1:{self._ports['kafka']}"
        self._environment["BRAID_ADMIN_URL"] = f"http://127.0.0.1:{self._ports['console']}"
        self._environment["BRAID_REGISTRY_URL"] = f"http://127.0.0.1:{self._ports['schemas']}"
        self._environment["BRAID_KV_URL"] = f"mayfly://127.0.0.1:{self._ports['mayfly']}"
        shown = [self._there(line) for line in printed]
        assert not step.shown or matches(step.shown, shown), "\n".join(shown)
        return "\n".join(shown) + "\n"

    @staticmethod
    def _announced(node: "subprocess.Popen[str]") -> Iterator[str]:
        assert node.stdout is not None
        for line in node.stdout:
            yield line.rstrip("\n")
            if "Ctrl-C" in line:
                return
        raise AssertionError("the node did not start")

    def _here(self, text: str) -> str:
        """A guide's ports are this node's."""
        for name, port in self._ports.items():
            text = text.replace(f"127.0.0.1:{DEFAULTS[name]}", f"127.0.0.1:{port}")
        return text

    def _there(self, text: str) -> str:
        for name, port in self._ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{DEFAULTS[name]}")
        return text
