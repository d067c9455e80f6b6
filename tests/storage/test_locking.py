"""One process at a time owns a data folder; the kernel gives it free when that process dies, however it dies."""

import subprocess
import sys
from pathlib import Path

import pytest

from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.embedded_log import Log

HOLDER = """
import sys
from braidlog.storage.embedded_log import Log
log = Log(sys.argv[1])
log.ensure_topic("t").append(b"held")
print("open", flush=True)
sys.stdin.read()
"""


def refused(folder: Path) -> str:
    with pytest.raises(BrokerError) as caught:
        Log(str(folder))
    assert caught.value.reason is Reason.FOLDER_IN_USE
    return str(caught.value)


def test_twice_in_one_process(tmp_path: Path) -> None:
    with Log(str(tmp_path)) as log:
        sentence = refused(tmp_path)
        assert str(tmp_path) in sentence
        assert "one process at a time owns a data folder" in sentence
        assert log.create_topic("t").append(b"still mine") == 0
    with Log(str(tmp_path)) as log:
        assert log.topic("t").read()[0].value == b"still mine"


def test_another_process_until_it_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        assert f"process {holder.pid}" in refused(tmp_path)
        holder.kill()
        holder.wait()
        with Log(str(tmp_path)) as log:
            assert log.topic("t").read()[0].value == b"held"


def test_a_failed_opening_gives_the_folder_free(tmp_path: Path) -> None:
    Log(str(tmp_path)).close()
    for name in ("folder.a", "folder.b"):
        (tmp_path / name).write_bytes(b"not a slot")
    for _ in range(2):
        with pytest.raises(Exception, match=r"folder\.a"):
            Log(str(tmp_path))
