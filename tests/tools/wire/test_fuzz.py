"""`braid wire fuzz`: a node stays well; a server that does not is caught, and the run that shows it can be had again."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools.schemas import check
from tests.tools.wire.braid import braid
from tests.tools.wire.toys import serving

from braidlog.testing.server import ServerProcess
from braidlog.tools.wire.annotated_hex import encode
from braidlog.tools.wire.fuzzer import FuzzSettings, corpus, fuzz, make_run, resident_bytes
from braidlog.tools.wire.script import Send, read_script
from braidlog.wire.dialect import dialects

DIALECTS = sorted(dialects())
PONG = bytes.fromhex("CAFE0101") + (1).to_bytes(4, "big") + bytes(4)
PING = bytes.fromhex("CAFE0104") + (1).to_bytes(4, "big") + bytes(4)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One of its own: damaged requests may still be valid ones, and other tests rely on what they left."""
    with ServerProcess(tmp_path_factory.mktemp("fuzzed") / "data") as server:
        yield server


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_node_stays_well(node: ServerProcess, dialect: str) -> None:
    server = f"{dialect}://127.0.0.1:{node.ports[dialect]}"
    before = node.errors()
    done = braid(
        "wire", "fuzz", "--server", server, "--runs", "150", "--seed", "7", "--pid", str(node.pid), "-o", "json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    check("wire-fuzz", found)
    assert found["well"]
    assert found["runs"] == 150
    assert found["answered"] > 20
    assert found["closed"] > 20
    assert found["memory_growth_bytes"] is not None
    assert "Traceback" not in node.errors()[len(before) :]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_runs_are_made_of_their_seed_alone(dialect: str) -> None:
    cases = corpus(dialect)
    runs = [make_run(cases, 3, number) for number in range(200)]
    assert runs == [make_run(cases, 3, number) for number in range(200)]
    assert runs != [make_run(cases, 4, number) for number in range(200)]
    valid = {message for _, messages in cases for message in messages}
    damaged = [run for run in runs if not set(run.messages) <= valid]
    assert len(damaged) > 150
    assert len({run.messages for run in runs}) > 150


def test_a_server_that_answers_nonsense_is_caught_and_the_run_can_be_had_again(tmp_path: Path) -> None:
    def answer(data: bytes) -> bytes | None:
        return PONG if data == PING else b"what?"

    with serving(answer) as port:
        out = tmp_path / "failing.wire"
        words = ("--server", f"mayfly://127.0.0.1:{port}", "--runs", "50", "--seed", "1")
        done = braid("wire", "fuzz", *words, "--out", str(out))
        assert done.returncode == 1
        assert "the server answered with invalid bytes" in done.stdout
        printed = braid("wire", "fuzz", *words, "-o", "json")
        failure = json.loads(printed.stdout)["failure"]
        check("wire-fuzz", json.loads(printed.stdout))
        assert out.read_text() == failure["script"]
        (case,) = read_script(out.read_text())
        sent = tuple(encode(step.items, {}) for step in case.steps if isinstance(step, Send))
        assert sent == tuple(m for m in make_run(corpus("mayfly"), 1, failure["run"]).messages if m)
        again = braid("wire", "send", str(out), "--server", f":{port}", "--timeout", "0.5")
        assert "< 77 68 61 74 3F" in again.stdout  # what?


def test_a_server_that_dies_is_caught() -> None:
    dead = threading.Event()

    def answer(data: bytes) -> bytes | None:
        if dead.is_set():
            return None
        if data != PING:
            dead.set()
            return None
        return PONG

    with serving(answer) as port:
        report = fuzz(FuzzSettings("mayfly", "127.0.0.1", port, runs=50, seed=2, timeout=5))
    assert report.failure is not None
    assert "no correct answer to a valid request after the run" in report.failure.why


def test_a_server_that_grows_is_caught() -> None:
    kept: list[bytes] = []

    def answer(data: bytes) -> bytes | None:
        if data == PING:
            return PONG
        kept.append(bytes(b"x" * 4_000_000))
        return None

    with serving(answer) as port:
        settings = FuzzSettings(
            "mayfly", "127.0.0.1", port, 200, 2, pid=os.getpid(), memory_growth_bytes_max=64_000_000
        )
        report = fuzz(settings)
    assert report.failure is not None
    assert "grew by" in report.failure.why
    assert resident_bytes(os.getpid()) > 0


def test_nobody_there() -> None:
    with serving(lambda data: data) as port:
        pass
    done = braid("wire", "fuzz", "--server", f"mlog://127.0.0.1:{port}", "--runs", "1")
    assert done.returncode == 3
    with serving(lambda _: b"no") as port:
        done = braid("wire", "fuzz", "--server", f"mlog://127.0.0.1:{port}", "--runs", "1")
    assert done.returncode == 3
    assert "does not answer the first example" in done.stderr
