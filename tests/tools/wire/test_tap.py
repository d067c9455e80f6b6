"""`braid wire tap`: nothing is lost or changed on the way, however it is cut and delayed; what passes is told."""

import json
import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.tools.schemas import check
from tests.tools.wire.braid import TapProcess, braid
from tests.tools.wire.toys import serving

from braidlog.testing.server import ServerProcess
from braidlog.tools.wire.network_faults import Splitter
from braidlog.wire.dialect import dialects

DIALECTS = sorted(dialects())
SECONDS_MAX = 60


@pytest.mark.parametrize(
    "faults", [(), ("--split", "1"), ("--split", "random", "--delay", "1", "--seed", "3")], ids=str
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_conversation_through_a_tap(
    node: ServerProcess, dialect: str, faults: tuple[str, ...], tmp_path: Path
) -> None:
    log = tmp_path / "talk.log"
    with TapProcess(dialect, node.ports[dialect], log, *faults) as tap:
        done = braid(
            "wire", "send", "--example", dialect, "--server", f"{dialect}://127.0.0.1:{tap.port}", "--timeout", "30"
        )
        assert done.returncode == 0, done.stdout
    lines = log.read_text().splitlines()
    assert len([line for line in lines if " --- OPEN " in line]) == done.stdout.count("as expected")
    assert len([line for line in lines if line.endswith(" --- CLOSED")]) == done.stdout.count("as expected")
    for line in lines:
        assert re.match(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{6}}Z {dialect} c\d+ (<-- RECV|--> SEND|---) ", line), (
            line
        )
        if "---" not in line:
            head, body, whole = map(int, re.search(r"\[(\d+)\+(\d+)=(\d+) bytes\]", line).groups())  # type: ignore[union-attr]
            assert head + body == whole > 0


def test_the_style_of_a_line(node: ServerProcess, tmp_path: Path) -> None:
    log = tmp_path / "talk.log"
    with TapProcess("mayfly", node.ports["mayfly"], log, "--hex") as tap:
        given = b"> CA FE 01 01 00000001 0000000C 0003 `foo` 00000003 `bar`\n< CA FE 01 01 00000001 00000000"
        assert braid("wire", "send", "-", "--server", f":{tap.port}", given=given).returncode == 0
    text = log.read_text()
    assert (
        'c1 <-- RECV [12+12=24 bytes] SET Magic=0xCAFE Ver=1 Cmd=0x01(SET) ReqID=1 Len=12 key="foo" value="bar"' in text
    )
    assert "c1 --> SEND [12+0=12 bytes] OK Magic=0xCAFE Ver=1 Status=0x01(OK) ReqID=1 Len=0" in text
    assert "> 00 03 66 6F 6F 00 00 00 03 62 61 72               # ..foo....bar" in text


def test_json(node: ServerProcess, tmp_path: Path) -> None:
    log = tmp_path / "talk.json"
    with TapProcess("cursus", node.ports["cursus"], log, "--format", "json") as tap:
        braid("wire", "send", "--example", "cursus", "--server", f":{tap.port}")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    for entry in entries:
        check("wire-log", entry)
    assert {entry["event"] for entry in entries} == {"open", "message", "closed"}
    assert any(
        entry.get("name") == "0xBA7C" and entry["fields"]["records"][0]["payload"] == "hello" for entry in entries
    )


def test_a_side_that_does_not_take_its_bytes_is_not_sent_more(tmp_path: Path) -> None:
    """Ten times what sockets hold, to a client that reads nothing: the server is held up, the tap does not grow."""
    total = 64 * 1024 * 1024
    flood = b"\xff" * total  # no frame begins so: the tap says it once, and passes on what comes
    with serving(lambda _: flood) as port, TapProcess("rustlog", port, tmp_path / "log") as tap:
        before = _resident_bytes(tap.pid)
        with socket.create_connection(("127.0.0.1", tap.port), timeout=SECONDS_MAX) as client:
            client.sendall(b"go")
            _until_quiet(tap.pid)
            assert _resident_bytes(tap.pid) - before < total // 2
            left = total
            while left:
                left -= len(client.recv(min(left, 1 << 20)))


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _until_quiet(pid: int) -> None:
    """Until the process has used no processor for a while."""
    deadline = time.monotonic() + SECONDS_MAX
    wait, ticks, calm = threading.Event(), -1, 0
    while calm < 10 and time.monotonic() < deadline:
        now = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        calm = calm + 1 if now == ticks else 0
        ticks = now
        wait.wait(0.02)


def test_half_a_goodbye_is_passed_on(tmp_path: Path) -> None:
    heard: list[bytes] = []
    done = threading.Event()

    def answer(data: bytes) -> bytes:
        heard.append(data)
        done.set()
        return b""

    with (
        serving(answer) as port,
        TapProcess("flux", port, tmp_path / "log") as tap,
        socket.create_connection(("127.0.0.1", tap.port), timeout=SECONDS_MAX) as client,
    ):
        client.sendall(b"V1|1|PING|\n")
        client.shutdown(socket.SHUT_WR)
        assert done.wait(SECONDS_MAX)
        assert client.recv(10) == b""  # the server heard that we are done, and hung up
    assert b"".join(heard) == b"V1|1|PING|\n"


def test_nobody_beyond(tmp_path: Path) -> None:
    with serving(lambda data: data) as port:
        pass
    log = tmp_path / "log"
    with (
        TapProcess("mlog", port, log) as tap,
        socket.create_connection(("127.0.0.1", tap.port), timeout=SECONDS_MAX) as wire,
    ):
        assert wire.recv(1) == b""
    assert " --- CLOSED" in log.read_text()


def test_wrong_usage() -> None:
    done = braid("wire", "tap", "--listen", ":0", "--to", ":1")
    assert (done.returncode, "unknown protocol" in done.stderr) == (2, True)
    done = braid("wire", "tap", "--listen", ":0", "--to", "mlog://x:1", "--split", "0")
    assert done.returncode == 2
    done = braid("wire", "tap", "--listen", ":0", "--to", "mlog://x:1", "--log", "/no/such/folder/log")
    assert done.returncode == 3


@pytest.mark.parametrize("how", ["", "1", "7", "random"])
def test_pieces_put_together_are_the_bytes(how: str) -> None:
    data = bytes(range(256)) * 5
    pieces = list(Splitter(how, seed=5).pieces(data))
    assert b"".join(pieces) == data
    assert pieces == list(Splitter(how, seed=5).pieces(data))
    assert len(pieces) == {"": 1, "1": 1280, "7": 183}.get(how, len(pieces))
    if how == "random":
        assert len({len(piece) for piece in pieces}) > 3
