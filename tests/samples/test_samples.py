"""A data folder that an earlier version wrote opens in this one, with all it had; one of a later version is left alone."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from tests.cli.braid import Braid
from tests.samples.folders import HERE, node_over, told, told_offline, unpack

import braidlog
from braidlog import Log
from braidlog.model.errors import StorageFault
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import FOLDER_MAGIC, FORMAT, FolderIdentity
from braidlog.storage.two_copy_file import TwoCopyFile

SAMPLES = sorted(HERE.glob("*/*.json"))


def test_this_version_has_its_samples() -> None:
    assert (HERE / braidlog.__version__ / "stopped.json") in SAMPLES, "run: python -m tests.samples.folders"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_an_earlier_version_wrote_is_there(sample: Path, tmp_path: Path) -> None:
    folder = unpack(sample.with_suffix(".tar.xz"), tmp_path)
    wanted = json.loads(sample.read_text(encoding="utf-8"))
    assert "Intact" in Braid().ok("log", "verify", str(folder))
    if sample.stem == "member":
        assert told_offline(folder) == wanted
        return
    with node_over(folder) as node:
        assert told(node) == wanted
        Braid(node).ok("produce", "segments", stdin="and it goes on\n")
        assert "goes on" in Braid(node).ok("consume", "segments")
    assert "Intact" in Braid().ok("log", "verify", str(folder))


def fingerprint(folder: Path) -> dict[str, str]:
    """Of every file but the lock, which is nobody's data."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "LOCK")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_after_a_downgrade_a_folder_of_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = unpack(HERE / "0.1.0" / "stopped.tar.xz", tmp_path)
    slots = TwoCopyFile(OsDisk(), str(folder), "folder", FOLDER_MAGIC)
    identity = msgspec.json.decode(slots.load()[0].payload, type=FolderIdentity)
    slots.save(msgspec.json.encode(msgspec.structs.replace(identity, format=FORMAT + 1)), copies=2)
    before = fingerprint(folder)
    words = (
        f"a later version of braidlog has written to it (folder format {FORMAT + 1}, this version reads {FORMAT}): "
        "start that version again, or restore a back-up made before the upgrade; nothing was changed"
    )
    with pytest.raises(RuntimeError) as told_by_node, node_over(folder):
        pass
    assert f"braid: {folder}: {words}\n" in str(told_by_node.value)
    assert "exit code 4" in str(told_by_node.value)
    with pytest.raises(StorageFault) as told_by_log:
        Log(str(folder))
    assert words in str(told_by_log.value)
    for command in (("log", "verify"), ("log", "list"), ("backup", "create", str(tmp_path / "kept"), "--data")):
        said = Braid()(*command, str(folder))
        assert (said.exit_code != 0, words in said.stderr) == (True, True), (command, said.output)
    assert fingerprint(folder) == before
