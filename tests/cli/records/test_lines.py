"""Lines in pieces: wherever a read ends, the lines are the same; `stop` ends a read that waits."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from braidlog.cli.records import lines as module
from braidlog.cli.records.lines import Lines
from braidlog.model.errors import BrokerError


def all_of(lines: Lines) -> list[tuple[str, bytes, int]]:
    found = []
    with lines:
        while (chunk := lines.next_chunk()) is not None:
            found += [(Path(line.file).name, line.text, line.number) for line in chunk]
    return found


@pytest.mark.parametrize("chunk_bytes", range(1, 12))
@pytest.mark.parametrize("delimiter", [b"\n", b"\r\n", b"ab"])
def test_wherever_a_read_ends(
    chunk_bytes: int, delimiter: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
    words = (
        [b"one", b"", b"a\rb\n", b"\xff", b"last"] if delimiter == b"ab" else [b"one", b"", b"a\r", b"\xff", b"last"]
    )
    expected = delimiter.join(words).split(delimiter)
    (tmp_path / "ended").write_bytes(delimiter.join(words) + delimiter)
    (tmp_path / "open").write_bytes(delimiter.join(words))
    (tmp_path / "empty").write_bytes(b"")
    files = tuple(str(tmp_path / name) for name in ("ended", "empty", "open"))
    assert all_of(Lines(files, delimiter)) == [
        (name, text, number) for name in ("ended", "open") for number, text in enumerate(expected, 1)
    ]


def test_whole_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\ny\n")
    (tmp_path / "b").write_bytes(b"")
    assert all_of(Lines((str(tmp_path / "a"), str(tmp_path / "b")), None)) == [("a", b"x\ny\n", 1), ("b", b"", 1)]


def test_what_never_ends_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 100)
    monkeypatch.setattr(module, "CHUNK_BYTES", 64)
    (tmp_path / "long").write_bytes(b"x" * 1000)
    with pytest.raises(BrokerError, match="more than 100 bytes"):
        all_of(Lines((str(tmp_path / "long"),), b"\n"))


def test_stop_ends_a_read_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before is given; what comes later is not read."""
    reading, writing = os.pipe()
    with open(reading, "rb") as source, open(writing, "wb", buffering=0) as pen:
        wrapper = io.TextIOWrapper(source)
        monkeypatch.setattr(sys, "stdin", wrapper)
        with Lines(("-",), b"\n") as lines:
            pen.write(b"one\nhalf")
            assert [line.text for line in lines.next_chunk() or []] == [b"one"]
            found: list[object] = []
            waiting = threading.Thread(target=lambda: found.append(lines.next_chunk()))
            waiting.start()
            lines.stop()
            waiting.join(60)
            assert found == [None]
            pen.write(b"\ntwo\n")
            assert lines.next_chunk() is None
        wrapper.detach()
