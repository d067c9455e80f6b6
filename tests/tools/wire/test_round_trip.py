"""What the logger prints, the sender accepts: a conversation is logged, played again to a fresh node, and answered the same.

The conversations are the examples, which hold what each dialect can do; they run through a tap, or against a node that logs.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools.schemas import check
from tests.tools.wire.braid import TapProcess, braid

from braidlog.testing.server import ServerProcess
from braidlog.wire.dialect import dialects

DIALECTS = sorted(dialects())


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """One that the conversation is held with, one that it is repeated to."""
    folder = tmp_path_factory.mktemp("nodes")
    with ServerProcess(folder / "first") as first, ServerProcess(folder / "second") as second:
        yield first, second


@pytest.fixture(scope="module")
def another_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The two have to be alike: what is done to one of them alone is done here."""
    with ServerProcess(tmp_path_factory.mktemp("another")) as node:
        yield node


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_tapped_conversation_is_played_again(
    two_nodes: tuple[ServerProcess, ServerProcess], dialect: str, form: str, tmp_path: Path
) -> None:
    log = tmp_path / "talk.log"
    # A fresh pair for each form: the second form finds what the first has left, in both nodes alike.
    first, second = two_nodes
    with TapProcess(dialect, first.ports[dialect], log, "--format", form, "--hex") as tap:
        done = braid("wire", "send", "--example", dialect, "--server", f"{dialect}://127.0.0.1:{tap.port}")
        assert done.returncode == 0, done.stdout
    if form == "json":
        for line in log.read_text().splitlines():
            check("wire-log", json.loads(line))
    again = braid("wire", "send", str(log), "--server", f":{second.ports[dialect]}", "-o", "json")
    found = json.loads(again.stdout)
    assert again.returncode == 0, [case.get("difference") for case in found["cases"] if not case["as_expected"]]
    assert len(found["cases"]) == done.stdout.count("as expected")
    answers = [line for line in log.read_text().splitlines() if "--> SEND" in line or '"side":"server"' in line]
    assert sum(len(case["answers"]) for case in found["cases"]) == len(answers) > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_another_answer_is_noticed(another_node: ServerProcess, dialect: str, tmp_path: Path) -> None:
    """The same log, one field of its last understood answer changed: the comparison of messages can fail."""
    log = tmp_path / "talk.log"
    changed = {
        "cursus": (b"OK group=cursus-group member=me", b"OK group=cursus-group member=he"),
        "flux": (b"heartbeat=ok", b"heartbeat=no"),
        "kafka": (b"kafka-example", b"kafka-exampLe"),
        "mayfly": (b"hello", b"hallo"),
        "mlog": (b'{"Success":true}', b'{"Success":null}'),
        "rustlog": (b'"record_count":1', b'"record_count":2'),
    }
    before, after = (data.hex(" ").upper() for data in changed[dialect])
    with TapProcess(dialect, another_node.ports[dialect], log, "--format", "json", "--hex") as tap:
        assert (
            braid("wire", "send", "--example", dialect, "--server", f"{dialect}://127.0.0.1:{tap.port}").returncode == 0
        )
    lines = [
        line.replace(before, after) if '"side":"server"' in line else line for line in log.read_text().splitlines()
    ]
    log.write_text("\n".join(lines))
    done = braid("wire", "send", str(log), "--server", f":{another_node.ports[dialect]}")
    assert done.returncode == 1, done.stdout
    assert "DIFFERENT" in done.stdout


def test_a_log_with_a_secret_needs_it_back(tmp_path: Path) -> None:
    text = (
        "2026-01-01T00:00:00.000000Z mlog c1 --- OPEN 127.0.0.1:1\n"
        "2026-01-01T00:00:00.000000Z mlog c1 <-- RECV [9+7=16 bytes] AUTH Preamble=AUTH Principal=bob token=<hidden, 6 bytes>\n"
        "> 41 55 54 48 20 62 6F 62 20   # AUTH bob\n> ** ** ** ** ** ** 0A\n"
    )
    log = tmp_path / "auth.log"
    log.write_text(text)
    done = braid("wire", "send", str(log), "--server", ":1", "--dry-run")
    assert done.returncode == 2
    assert "--secret-file" in done.stderr
    (tmp_path / "secret").write_text("secret\n")
    done = braid("wire", "send", str(log), "--server", ":1", "--dry-run", "--secret-file", str(tmp_path / "secret"))
    assert bytes.fromhex(done.stdout) == b"AUTH bob secret\n"


def test_a_log_without_bytes_says_what_it_lacks(tmp_path: Path) -> None:
    log = tmp_path / "short.log"
    log.write_text("2026-01-01T00:00:00.000000Z mlog c1 <-- RECV [6+2=8 bytes] ListTopics Type=25(ListTopics) Size=2\n")
    done = braid("wire", "send", str(log), "--server", ":1")
    assert done.returncode == 2
    assert "--hex" in done.stderr
