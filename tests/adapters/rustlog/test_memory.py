"""Memory under RustLog clients that ask for much and take nothing: large answers, many at once, woken together."""

from collections.abc import Iterator

import pytest
from tests.adapters.hostility import MEMORY_BYTES_MAX, WellBehaved, check_unharmed, many, push_all
from tests.adapters.rustlog.client import Client, framed

from braidlog.testing.server import ServerProcess
from braidlog.wire.rustlog import binary, jsonform
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.messages import Form

RECORD_BYTES = 5_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("memory") / "data") as process:
        yield process


def fetch(topic: str, form: Form, wait_ms: int | None = None) -> bytes:
    asked = m.Fetch(
        group_id="",
        topic=topic,
        partition=0,
        offset=0,
        max_bytes=2**32 - 1,
        max_wait_ms=None if wait_ms is None else wait_ms,
    )
    return framed(binary.write_request(asked) if form is Form.BINARY else jsonform.write(asked))


@pytest.mark.parametrize("form", list(Form))
def test_large_answers_that_nobody_takes(server: ServerProcess, form: Form) -> None:
    """Two hundred connections ask fifty times each for seven megabytes: sixty gigabytes, if anyone kept them."""
    topic = f"large-{form.value}"
    with Client(server, Form.BINARY) as client:
        client.create(topic)
        client.produce(topic, bytes(RECORD_BYTES))
    with WellBehaved(server, f"kept-{form.value}") as good, many(server, "rustlog", 200) as peers:
        good.go_on()
        push_all(dict.fromkeys(peers, fetch(topic, form) * 50))
        good.go_on()
    assert good.grown_bytes < MEMORY_BYTES_MAX
    check_unharmed(server)


def test_long_polls_that_wake_together(server: ServerProcess) -> None:
    """One produce of five megabytes wakes two thousand polls on twenty connections, none of which is read."""
    with Client(server, Form.BINARY) as client:
        client.create("polled")
        with WellBehaved(server, "kept-polled") as good, many(server, "rustlog", 20) as peers:
            push_all(dict.fromkeys(peers, fetch("polled", Form.JSON, 30_000) * 100))
            good.go_on()
            client.produce("polled", bytes(RECORD_BYTES))
            good.go_on()
        assert good.grown_bytes < MEMORY_BYTES_MAX
    check_unharmed(server)


def test_the_most_records_a_frame_can_hold(server: ServerProcess) -> None:
    """1.3 million records of two bytes in one frame, and read back by readers that want them all."""
    with WellBehaved(server, "kept-tiny") as good, Client(server, Form.BINARY) as client:
        client.create("tiny")
        count = 1_300_000
        assert client.produce("tiny", *[b"ab"] * count).record_count == count
        good.go_on()
        offset = 0
        while (answer := client.fetch("tiny", offset, max_bytes=2**32 - 1)).records:
            offset = answer.next_offset
        assert offset == count
        with Client(server) as reader:
            assert reader.fetch("tiny", count - 1000, max_bytes=2**32 - 1).next_offset == count
        good.go_on()
    assert good.grown_bytes < MEMORY_BYTES_MAX
    check_unharmed(server)
