"""The blocking face: many threads, interrupts, programs that forget to close."""

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from tests.client.dialects import COLUMNS, fresh, server_url

import braidlog
from braidlog.client.errors import ClosedError
from braidlog.testing.server import ServerProcess

SECONDS_MAX = 60


def client_threads() -> int:
    return sum(thread.name == "braidlog client" for thread in threading.enumerate())


@pytest.mark.parametrize("column", COLUMNS)
def test_eight_threads_share_a_producer(column: str, braid_server_shared: ServerProcess) -> None:
    before = client_threads()
    with braidlog.connect(server_url(column, braid_server_shared)) as client:
        assert client_threads() == before + 1
        topic = fresh()
        client.admin.create_topic(topic)
        producer = client.producer()

        def send(thread: int) -> list[tuple[bytes, int]]:
            values = [b"%d-%d" % (thread, at) for at in range(40)]
            sent = [(value, producer.send(topic, value)) for value in values]
            return [(value, delivery.result(SECONDS_MAX).offset) for value, delivery in sent]

        with ThreadPoolExecutor(8) as pool:
            told = {offset: value for part in pool.map(send, range(8)) for value, offset in part}
        consumer = client.consumer()
        consumer.assign(topic)
        found: dict[int, bytes | None] = {}
        for record in consumer:
            found[record.offset] = record.value
            if len(found) == 320:
                break
        assert found == told
        for thread in range(8):  # each thread's own records stand in its order
            mine = [value for _, value in sorted(told.items()) if value.startswith(b"%d-" % thread)]
            assert mine == [b"%d-%d" % (thread, at) for at in range(40)]
    assert client_threads() == before


def test_a_waiting_call_holds_no_lock_that_an_interrupt_could_leave_closed(braid_server_shared: ServerProcess) -> None:
    """An interrupt lands where a Python function begins: while it waits, the main thread is in none of `threading` or `futures`.

    `Condition.__exit__` is one; interrupted there, its lock stays closed, the client's thread waits for it, and so does `close`.
    """
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals["__name__"] in ("threading", "concurrent.futures._base"):
            entered.append(frame.f_code.co_qualname)

    with braidlog.connect(server_url("kafka", braid_server_shared)) as client:
        topic = fresh()
        client.admin.create_topic(topic)
        consumer = client.consumer()
        consumer.assign(topic)
        sys.setprofile(note)
        try:
            assert consumer.poll(timeout=0.05) == []
        finally:
            sys.setprofile(None)
    assert [name for name in entered if not name.startswith(("current_thread", "get_ident"))] == []


def test_with_flushes(braid_server_shared: ServerProcess) -> None:
    url = server_url("cursus", braid_server_shared)
    topic = fresh()
    with braidlog.connect(url) as client:
        client.admin.create_topic(topic)
        producer = client.producer(linger_ms=60_000)
        sent = producer.send_many(topic, [b"%d" % at for at in range(100)])
        assert client.unflushed == 100
    assert [delivery.result().offset for delivery in sent] == list(range(100))
    with pytest.raises(ClosedError):
        producer.send(topic, b"late")
    with pytest.raises(ClosedError):
        client.admin.list_topics()
    client.close()


INTERRUPTED = """
import asyncio, sys, threading, time, braidlog
client = braidlog.connect(sys.argv[1])
client.admin.create_topic(sys.argv[2])
stuck = threading.Event()

async def never(_):
    stuck.set()
    await asyncio.Event().wait()

client._inner._driver.produce = never
delivery = client.producer().send(sys.argv[2], b"v")
assert stuck.wait(60)

def tell():
    while not client._inner._closed:
        time.sleep(0.005)
    print("closing", flush=True)

teller = threading.Thread(target=tell)
teller.start()
try:
    client.close()
except KeyboardInterrupt:
    teller.join()
    print([thread.name for thread in threading.enumerate()], repr(delivery))
"""


def test_an_interrupted_close_ends_all_the_same(braid_server_shared: ServerProcess) -> None:
    """Ctrl-C while close flushes: the thread ends, and each record's fate is told."""
    command = [sys.executable, "-W", "error", "-c", INTERRUPTED, server_url("mlog", braid_server_shared), fresh()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "closing\n"
        process.send_signal(signal.SIGINT)
        said, faults = process.communicate(timeout=SECONDS_MAX)
    assert said.startswith("['MainThread'] <Delivery: UnknownOutcomeError("), said + faults
    assert faults == ""


def test_a_result_that_is_not_there_in_time_stays_on_its_way(braid_server_shared: ServerProcess) -> None:
    with braidlog.connect(server_url("rustlog", braid_server_shared)) as client:
        topic = fresh()
        client.admin.create_topic(topic)
        producer = client.producer(linger_ms=60_000)
        delivery = producer.send(topic, b"v")
        with pytest.raises(TimeoutError):
            delivery.result(0.01)
        assert not delivery.done()
        producer.flush()
        assert delivery.result().offset == 0


def test_a_callback_cannot_wait_for_its_own_thread(braid_server_shared: ServerProcess) -> None:
    with braidlog.connect(server_url("flux", braid_server_shared)) as client:
        topic = fresh()
        client.admin.create_topic(topic)
        caught: list[BaseException] = []

        def wait(_: Any, __: Any) -> None:
            try:
                client.admin.list_topics()
            except RuntimeError as error:
                caught.append(error)

        client.consumer().subscribe(topic, group=fresh("g"), on_rebalance=wait)
        assert "cannot wait" in str(caught[0])


PROGRAM = """
import sys, braidlog
client = braidlog.connect(sys.argv[1], retry_timeout=1)
client.admin.ensure_topic(sys.argv[2])
producer = client.producer(linger_ms=3_600_000)
producer.send_many(sys.argv[2], [b"%d" % at for at in range(10)])
"""


def test_a_program_that_forgets_to_close_is_flushed_and_told(braid_server_shared: ServerProcess) -> None:
    url, topic = server_url("cursus", braid_server_shared), fresh()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, topic], capture_output=True, text=True, timeout=SECONDS_MAX, check=True
    )
    assert "RuntimeWarning" in done.stderr
    assert "10 records were still in flight; they were flushed now" in done.stderr
    assert "was destroyed" not in done.stderr
    with braidlog.connect(url) as client:
        assert client.admin.describe_topic(topic).partitions[0].latest == 10


def test_a_program_that_closes_hears_nothing(braid_server_shared: ServerProcess) -> None:
    url = server_url("cursus", braid_server_shared)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM + "client.close()", url, fresh()],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    assert done.stderr == ""
