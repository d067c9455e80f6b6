"""A cut is the folder at one moment: whatever happens to the files afterwards, and whatever was looked at before."""

import os
from pathlib import Path

from braidlog import Log, NewRecord
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.folder_snapshot import CUT, SnapshotBuilder, SnapshotFile, drop_snapshot, make_room

LATER_MS = 10**15
"""Of a clock that is far ahead: every file's time is settled then."""


def append(log: Log, topic: str, count: int) -> None:
    log.topic(topic).append_many([NewRecord(b"x" * 100)] * count)


def filled(data: Path) -> Log:
    log = Log(str(data))
    for topic in ("busy", "idle"):
        log.create_topic(topic, segment_bytes=4096)
        for _ in range(5):
            append(log, topic, 20)
    make_room(OsDisk(), str(data))
    return log


def contents(data: Path, files: list[SnapshotFile]) -> dict[str, bytes]:
    found = {}
    for file in files:
        rest = (data / CUT / file.kept).read_bytes()[len(file.head) : file.size] if file.kept else b""
        found[file.path] = file.head + rest
        assert len(found[file.path]) == file.size
    assert len(found) == len(files)
    return found


def on_disk(data: Path, paths: set[str]) -> dict[str, bytes]:
    return {path: (data / path).read_bytes() for path in paths}


def test_what_comes_after_a_cut_is_not_in_it(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        cutting = SnapshotBuilder(OsDisk(), str(tmp_path), log.folder.pool)
        cutting.take_topics()
        paths = {file.path for file in cutting.files}
        before = on_disk(tmp_path, paths)
        for _ in range(5):
            append(log, "busy", 20)
        log.topic("busy").delete_before(60)
        log.delete_topic("idle")
        assert contents(tmp_path, cutting.files) == before
    drop_snapshot(OsDisk(), str(tmp_path))
    assert not (tmp_path / CUT).exists()


def test_the_index_of_a_segment_that_grows_is_left_out(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        cutting = SnapshotBuilder(OsDisk(), str(tmp_path), log.folder.pool)
        cutting.take_topics()
    names = {Path(file.path).name for file in cutting.files if file.path.startswith("topics/00000001/0000")}
    segments = sorted(name for name in names if name.endswith(".log"))
    indexes = sorted(name for name in names if name.endswith(".idx"))
    assert len(segments) > 2
    assert [name[:20] for name in indexes] == [name[:20] for name in segments[:-1]]


def test_what_changes_between_preparing_and_the_cut_is_in_it(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        cutting = SnapshotBuilder(OsDisk(), str(tmp_path), log.folder.pool)
        cutting.prepare(LATER_MS)
        append(log, "busy", 20)
        cutting.take_topics()
        assert contents(tmp_path, cutting.files) == on_disk(tmp_path, {file.path for file in cutting.files})


def test_a_file_that_was_written_to_just_now_is_read_again(tmp_path: Path) -> None:
    """Its time may be the same as before."""
    with filled(tmp_path) as log:
        slot = tmp_path / "topics" / "00000002" / "topic.b"
        was = slot.stat()
        cutting = SnapshotBuilder(OsDisk(), str(tmp_path), log.folder.pool)
        cutting.prepare(was.st_mtime_ns // 1_000_000)
        slot.write_bytes(bytes(was.st_size))
        os.utime(slot, ns=(was.st_atime_ns, was.st_mtime_ns))
        cutting.take_topics()
        assert contents(tmp_path, cutting.files)["topics/00000002/topic.b"] == bytes(was.st_size)


def test_what_is_written_over_zeros_after_a_cut_is_not_in_it(tmp_path: Path) -> None:
    """Small appends leave zeros ahead of the end: a file as long as it was then would have what came later, too."""
    with Log(str(tmp_path)) as log:
        log.create_topic("acknowledged")
        for _ in range(8):
            append(log, "acknowledged", 1)
        place = tmp_path / "topics" / "00000001" / "0000" / f"{0:020d}.log"
        size = log.topic("acknowledged").partition().segments[0].size
        assert place.stat().st_size > size
        make_room(OsDisk(), str(tmp_path))
        cutting = SnapshotBuilder(OsDisk(), str(tmp_path), log.folder.pool)
        cutting.take_topics()
        was = contents(tmp_path, cutting.files)
        append(log, "acknowledged", 1)
        assert contents(tmp_path, cutting.files) == was
        assert len(was[str(place.relative_to(tmp_path))]) == size
