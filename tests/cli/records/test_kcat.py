"""The letters of a format mean what they mean in kcat: the same records, printed by both, and read by each from the other."""

import subprocess

import pytest
from tests.cli.braid import SECONDS_MAX, Braid, fresh
from tests.debian import have

from braidlog.testing.server import ServerProcess

FORMATS = ["%t %p %o\\n", "%k=%s\\n", "%S %K\\n", "%T|%h\\n", "%%\\t\\x41%s\\n"]


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    have("kcat", "kcat")


def kcat(server: ServerProcess, *words: str, given: bytes = b"") -> bytes:
    command = ["kcat", "-b", f"127.0.0.1:{server.ports['kafka']}", "-q", *words]
    done = subprocess.run(command, input=given, capture_output=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_records_look_the_same(braid_server_shared: ServerProcess) -> None:
    braid, topic = Braid(braid_server_shared), fresh("kcat")
    braid.ok("topic", "create", topic)
    kcat(
        braid_server_shared,
        "-P",
        "-t",
        topic,
        "-K",
        ":",
        "-H",
        "a=1",
        "-H",
        "b=2",
        given=b"one:first\ntwo:sec:ond\n:third\n",
    )
    braid.ok("produce", topic, "-k", "four", "-H", "c=3", stdin="fourth\n")
    for shape in FORMATS:
        theirs = kcat(braid_server_shared, "-C", "-t", topic, "-o", "beginning", "-e", "-f", shape)
        assert braid.ok("consume", topic, "-f", shape).encode() == theirs, shape
    for offset in ("2", "-1", "beginning"):
        theirs = kcat(braid_server_shared, "-C", "-t", topic, "-o", offset, "-e", "-f", "%o %s\\n")
        assert braid.ok("consume", topic, "-o", offset, "-f", "%o %s\\n").encode() == theirs, offset
    theirs = kcat(braid_server_shared, "-C", "-t", topic, "-o", "beginning", "-e", "-c", "2")
    assert braid.ok("consume", topic, "-n", "2").encode() == theirs


def test_lines_with_keys_are_read_the_same(braid_server_shared: ServerProcess) -> None:
    braid, ours, theirs = Braid(braid_server_shared), fresh("ours"), fresh("theirs")
    lines = b"key:value\nkey:with:more\n:no key\nlast:without an end"
    for topic in (ours, theirs):
        braid.ok("topic", "create", topic)
    braid.ok("produce", ours, "-K", ":", stdin=lines)
    kcat(braid_server_shared, "-P", "-t", theirs, "-K", ":", given=lines)
    shown = [braid.ok("consume", topic, "-f", "%o [%k] [%s] %S\\n") for topic in (ours, theirs)]
    assert shown[0] == shown[1]
