"""What the tests of commands share: the command against a node, its JSON against docs/schemas, a node that asks who one is."""

import hashlib
import itertools
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from click.testing import CliRunner, Result

from braidlog.cli import main
from braidlog.testing.server import ServerProcess

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
PROGRAM = [sys.executable, "-m", "braidlog.cli"]
SECONDS_MAX = 60
NOBODY = "kafka://127.0.0.1:1"
DEBUGGED = {"PYTHONASYNCIODEBUG": "1", "PYTHONDEVMODE": "1"}
COLLECTED = [sys.executable, "-c", "import atexit, gc, braidlog.cli; atexit.register(gc.collect); braidlog.cli.main()"]
"""The program; at its end Python looks at all that is left."""
UNDONE = rb"Task was destroyed|never awaited|never retrieved|Traceback"
"""What Python says of work that was left undone, of `COLLECTED` in an environment of `DEBUGGED`."""
DIALECTS = ("kafka", "cursus", "mlog", "rustlog", "flux")
_numbers = itertools.count()


def fresh(word: str = "t") -> str:
    """A name that no other test has."""
    return f"{word}-{next(_numbers)}-{os.getpid()}"


def url_of(server: ServerProcess, dialect: str = "kafka") -> str:
    return f"{dialect}://127.0.0.1:{server.ports[dialect]}"


def check(name: str, value: Any) -> None:
    """Valid against a schema of docs/schemas, which is itself one."""
    _validator(name).validate(value)


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


class Braid:
    """The command, with a node in the environment."""

    def __init__(self, server: ServerProcess | None = None, dialect: str = "kafka", url: str = "") -> None:
        self.url = url or (url_of(server, dialect) if server is not None else NOBODY)
        self.environment = {"BRAID_SERVER": self.url}
        self.program = PROGRAM

    def __call__(self, *args: str, stdin: bytes | str = b"") -> Result:
        return CliRunner().invoke(main, args, env=self.environment, input=stdin)

    def ok(self, *args: str, stdin: bytes | str = b"") -> str:
        """What it prints; nothing goes wrong, and nothing is said to people who are not there."""
        result = self(*args, stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, ""), f"{args}: {result.output} {result.exception!r}"
        return result.stdout

    def json(self, *args: str, schema: str) -> Any:
        value = json.loads(self.ok(*args, "-o", "json"))
        check(schema, value)
        return value

    def fails(self, code: int, *args: str, stdin: bytes | str = b"") -> str:
        """What it says of the failure: lines that begin with the command's name, or how it is used."""
        result = self(*args, stdin=stdin)
        assert result.exit_code == code, f"{args}: {result.output} {result.exception!r}"
        said = result.stderr
        assert "Traceback" not in said
        if code != 2:
            assert all(line.startswith("braid: ") for line in said.splitlines())
        return said

    def start(self, *args: str, **options: Any) -> "subprocess.Popen[bytes]":
        """The same in a process of its own, for signals and pipes."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*self.program, *args], env={**os.environ, **self.environment}, **{**pipes, **options})


TOKENS = {"root": "secret-of-root", "ann": "secret-of-ann", "bob": "secret-of-bob"}
RULES = """
[[auth.rules]]
principal = "root"
operations = ["*"]

[[auth.rules]]
principal = "ann"
operations = ["read", "describe"]
topic = "open*"

[[auth.rules]]
principal = "bob"
operations = ["create", "describe"]
topic = "bobs*"
"""


def guarded(folder: Path) -> list[str]:
    """Arguments of a node on which root may do everything, ann read what is open, bob make what is his, strangers nothing; and
    files with the tokens.
    """
    tokens = "".join(f'{name} = "{hashlib.sha256(word.encode()).hexdigest()}"\n' for name, word in TOKENS.items())
    (folder / "braid.toml").write_text(f"[auth.tokens]\n{tokens}{RULES}", encoding="utf-8")
    for name, word in {**TOKENS, "wrong": "guessed"}.items():
        (folder / f"{name}.token").write_text(f"{word}\n", encoding="utf-8")
    return ["--config", str(folder / "braid.toml"), "--set", "auth.failure_delay_seconds=0"]


def as_(folder: Path, principal: str, token: str | None = None) -> list[str]:
    return ["--principal", principal, "--token-file", str(folder / f"{token or principal}.token")]
