"""What a kill leaves, less what was not synced: names by their folders, contents by their files."""

import os
from pathlib import Path

import pytest
from tests.attack.unsynced import NOT_KEPT, Notebook, lose_unsynced


class Folder:
    """Files that are made, renamed and removed with a note of it, as `tests.attack.node` makes a node do."""

    def __init__(self, path: Path) -> None:
        self.path = path / "data"
        self.path.mkdir()
        self._notebook, self._aside = path / "notebook", path / "aside"
        self.notebook = Notebook(self._notebook, self._aside)

    def make(self, name: str, data: bytes = b"") -> None:
        (self.path / name).write_bytes(data)
        self.notebook.note("new", os.stat(self.path / name).st_ino)
        self.notebook.note("made", self.path / name)

    def sync(self, name: str) -> None:
        status = os.stat(self.path / name)
        self.notebook.note("sync", status.st_ino, status.st_size)

    def sync_names(self) -> None:
        self.notebook.note("names", self.path, self.notebook.lines)

    def move(self, old: str, new: str) -> None:
        aside = self.notebook.keep(str(self.path / new))
        os.replace(self.path / old, self.path / new)
        self.notebook.note("moved", self.path / old, self.path / new, aside)

    def remove(self, name: str) -> None:
        aside = self.notebook.keep(str(self.path / name))
        os.unlink(self.path / name)
        self.notebook.note("gone", self.path / name, aside)

    def lose(self) -> dict[str, bytes]:
        lose_unsynced(self._notebook, self._aside, self.path)
        return {path.name: path.read_bytes() for path in self.path.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = Folder(tmp_path)
    found.make("old", b"old")
    found.sync("old")
    found.sync_names()
    return found


def test_synced_contents_and_names_stay(folder: Folder) -> None:
    folder.make("new", b"new")
    folder.sync("new")
    folder.sync_names()
    assert folder.lose() == {"old": b"old", "new": b"new"}


def test_a_name_is_lost_without_its_folder(folder: Folder) -> None:
    folder.make("new", b"new")
    folder.sync("new")
    assert folder.lose() == {"old": b"old"}


def test_contents_are_cut_to_what_was_synced(folder: Folder) -> None:
    with (folder.path / "old").open("ab") as file:
        file.write(b" and more")
    folder.make("new", b"new")
    folder.sync_names()
    assert folder.lose() == {"old": b"old", "new": b""}


def test_renames_and_removals_are_undone(folder: Folder) -> None:
    folder.make("new", b"new")
    folder.sync("new")
    folder.sync_names()
    folder.move("new", "old")
    assert folder.lose() == {"old": b"old", "new": b"new"}


def test_removals_are_undone(folder: Folder) -> None:
    folder.remove("old")
    folder.make("old", b"other")
    assert folder.lose() == {"old": b"old"}
    assert folder.lose() == {"old": b"old"}


def test_names_made_during_a_sync_are_not_synced_by_it(folder: Folder) -> None:
    lines = folder.notebook.lines
    folder.make("new", b"")
    folder.notebook.note("names", folder.path, lines)
    assert folder.lose() == {"old": b"old"}


def test_what_could_not_be_kept_is_lost_for_good(folder: Folder) -> None:
    os.unlink(folder.path / "old")
    folder.notebook.note("gone", folder.path / "old", NOT_KEPT)
    assert folder.lose() == {}
