"""A dialect is declared once: a seventh, made up from two folders and a driver, is listed wherever dialects are listed."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from braidlog.server.config import ListenersConfig, load_config
from braidlog.wire.dialect import Dialect, dialects

WIRE = """
from braidlog.wire.dialect import Dialect, ListenerOption
DIALECT = Dialect(name="echo", title="Echo", port=4777, listener_options=(ListenerOption("shout", default=False),))
"""
OBSERVER = """
from braidlog.wire.observer import LengthPrefixed, Reading
class EchoObserver(LengthPrefixed):
    frame_bytes_max = 100
    def read(self, side, frame):
        return Reading("Echo", {}, 4)
"""
ADAPTER = """
import msgspec
from braidlog.wire.contract import NEED_DATA
class Uses(msgspec.Struct):
    pass
class Connection:
    frame_bytes_max, buffered_bytes, held = 100, 0, b""
    def receive(self, data):
        self.held = data
    def next_event(self):
        found, self.held = self.held, b""
        return found or NEED_DATA
    def respond(self, request, answer):
        return answer
class EchoAdapter:
    dialect, ordered = "echo", True
    uses = Uses
    def __init__(self, services, *, shout):
        self.shout = shout
    def open(self):
        return Connection()
    def operation(self, request):
        return "echo"
    async def handle(self, conversation, request):
        return request.upper() if self.shout else request
"""
DRIVER = """
from braidlog.client.drivers.contract import Capabilities
class EchoDriver:
    capabilities = Capabilities(keys=True)
    def __init__(self, target, options, policy, tls):
        self.nodes = target.nodes
"""
START = """
import sys
import braidlog.adapters, braidlog.client.drivers, braidlog.wire
for package in (braidlog.adapters, braidlog.client.drivers, braidlog.wire):
    package.__path__.append(f"{sys.argv[1]}/{package.__name__.rpartition('.')[2]}")
del sys.argv[1]
"""
LISTED = (
    START
    + """
import json
from braidlog.cli.wire.options import DIALECTS
from braidlog.client.schemes import capabilities, make_driver, parse_url
from braidlog.client.engine.retry import Policy
from braidlog.server.config import load_config
from braidlog.tools.wire.capture.observed_connection import Watcher
from braidlog.wire.observer import Side
config = load_config(None, {"BRAID_LISTENERS__ECHO__SHOUT": "true"}, {}).config
print(json.dumps({
    "listener": [config.listeners.echo.port, config.listeners.echo.shout],
    "scheme": make_driver(parse_url("echo://host"), Policy()).nodes,
    "column": capabilities()["echo"].keys,
    "choices": "echo" in DIALECTS.choices,
    "seen": [each.name for each in Watcher("echo").feed(Side.CLIENT, bytes(4))],
}))
"""
)
BRAID = START + "from braidlog.cli import main\nmain(prog_name='braid')\n"
NAMES = START + "import runpy\nrunpy.run_module('braidlog.wire', run_name='__main__')\n"
SPEAK = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'hello'); print(s.recv(99))"
)


@pytest.fixture
def seventh(tmp_path: Path) -> Path:
    files = {"wire/echo/__init__": WIRE, "wire/echo/observer": OBSERVER, "drivers/echo": DRIVER}
    files |= {"adapters/echo/__init__": "", "adapters/echo/handlers": ADAPTER}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    return tmp_path


def run(code: str, *words: object) -> str:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_seventh_is_listed_by_settings_client_tools_and_scripts(seventh: Path) -> None:
    assert json.loads(run(LISTED, seventh)) == {
        "listener": [4777, True],
        "scheme": [["host", 4777]],
        "column": True,
        "choices": True,
        "seen": ["Echo"],
    }
    assert run(NAMES, seventh).split() == ["cursus", "echo", "flux", "kafka", "mayfly", "mlog", "rustlog"]


def test_the_seventh_is_served(seventh: Path) -> None:
    ports = [f"listeners.{name}.port=0" for name in ("echo", *dialects())]
    changes = [
        word
        for each in (*ports, "admin.port=0", "registry.port=0", "listeners.echo.shout=true")
        for word in ("--set", each)
    ]
    command = [sys.executable, "-u", "-c", BRAID, str(seventh), "dev", "--data-dir", str(seventh / "data"), *changes]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        lines = "".join(process.stdout.readline() for _ in range(len(dialects()) + 4))
        found = dict(re.findall(r"^ +(\w+)://\s*127\.0\.0\.1:(\d+)", lines, re.MULTILINE))
        assert set(found) == {"echo", *dialects()}
        assert run(SPEAK.format(port=found["echo"])).strip() == "b'HELLO'"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize("dialect", dialects().values(), ids=dialects())
def test_a_listener_keeps_its_port_when_something_else_of_it_is_set(dialect: Dialect) -> None:
    loaded = load_config(None, {}, {f"listeners.{dialect.name}.advertised_host": "broker"})
    listener = getattr(loaded.config.listeners, dialect.name)
    assert (listener.port, listener.advertised_host) == (dialect.port, "broker")
    assert loaded.origins[f"listeners.{dialect.name}.port"] == "default"


@pytest.mark.parametrize("dialect", dialects().values(), ids=dialects())
def test_operations_and_secrets_are_facts_of_a_dialect(dialect: Dialect) -> None:
    names = [row.name for row in dialect.operations]
    assert len(set(names)) == len(names) >= 10
    assert bool(dialect.secrets) == (dialect.name in ("cursus", "kafka", "mayfly"))


def test_every_dialect_has_a_listener_and_a_port_of_its_own() -> None:
    assert list(ListenersConfig.__struct_fields__) == list(dialects())
    assert len({each.port for each in dialects().values()}) == len(dialects())
