"""The rules of the simulated disk together, at random: against a naive model and the real disk."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, File, OsDisk
from braidlog.testing.disk import SimulatedDisk

Tree = dict[str, bytes]
FOLDERS = ["/", "/d", "/e"]
PATHS = ["/a", "/b", "/d/a", "/d/b", "/e/a"]
Action = tuple[str, str, str, int, int]

NAME_KINDS = ["create", "create", "rename", "remove", "sync_folder", "sync_folder"]
FILE_KINDS = ["write", "write", "append", "append", "truncate", "sync"]
FOLDER_KINDS = ["make_folder", "remove_folder"]


def actions(kinds: list[str]) -> st.SearchStrategy[list[Action]]:
    path = st.sampled_from(PATHS)
    return st.lists(
        st.tuples(st.sampled_from(kinds), path, path, st.integers(0, 1300), st.integers(1, 1300)), max_size=25
    )


def tree(disk: SimulatedDisk) -> Tree:
    return {path: disk.content(path) for path in disk.files()}


def perform(disk: Disk, root: str, action: Action, fill: int) -> bool:
    """Do it; return whether the disk agreed."""
    kind, path, other, position, size = action
    try:
        if kind in FILE_KINDS:
            file = disk.open(root + path, writable=True)
            perform_on_file(file, kind, position, bytes([fill % 255 + 1]) * size)
            file.close()
        else:
            perform_on_name(disk, kind, root + path, root + other, root + FOLDERS[position % len(FOLDERS)])
    except StorageFault:
        return False
    return True


def perform_on_file(file: File, kind: str, position: int, data: bytes) -> None:
    match kind:
        case "write":
            file.write_at(data, position)
        case "append":
            file.append([data[:5], data[5:]], file.size())
        case "truncate":
            file.truncate(position)
        case _:
            file.sync()


def perform_on_name(disk: Disk, kind: str, path: str, other: str, folder: str) -> None:
    match kind:
        case "create":
            disk.create(path).close()
        case "rename":
            disk.rename(path, other)
        case "remove":
            disk.remove(path)
        case "make_folder":
            disk.make_folder(folder)
        case "remove_folder":
            disk.remove_folder(folder)
        case _:
            disk.sync_folder(folder)


Step = tuple[str, str, int]  # ("link", path, file) or ("unlink", path, file)


@dataclass
class Event:
    """One change and whether a sync has made it durable. `place`: the file's number or the folder's path."""

    place: int | str
    steps: list[Step] = field(default_factory=list)
    cut: int | None = None
    start: int = 0
    data: bytes = b""
    durable: bool = False

    def reaches(self, index: int) -> bool:
        if self.cut is not None:
            return index >= self.cut
        return self.start <= index < self.start + len(self.data)


@dataclass
class Reference:
    """The naive model: the whole history, replayed from nothing for every question. Folders stay."""

    events: list[Event] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def perform(self, action: Action, fill: int) -> None:
        kind, path, other, position, size = action
        if kind == "sync_folder":
            self.sync(FOLDERS[position % len(FOLDERS)])
        elif kind == "create":
            if path not in self.ids:
                self.ids[path] = len(self.sizes)
                self.sizes[self.ids[path]] = 0
                self.events.append(Event(parent(path), [("link", path, self.ids[path])]))
        elif path in self.ids and kind in FILE_KINDS:
            self.perform_on_file(kind, self.ids[path], position, bytes([fill % 255 + 1]) * size)
        elif path in self.ids and (kind == "remove" or path != other):
            number = self.ids.pop(path)
            unlink, link = ("unlink", path, number), ("link", other, number)
            if kind == "remove":
                self.events.append(Event(parent(path), [unlink]))
                return
            self.ids[other] = number
            if parent(path) == parent(other):
                self.events.append(Event(parent(path), [unlink, link]))
            else:
                self.events += [Event(parent(other), [link]), Event(parent(path), [unlink])]

    def perform_on_file(self, kind: str, number: int, position: int, data: bytes) -> None:
        if kind == "sync":
            self.sync(number)
        elif kind == "truncate":
            self.sizes[number] = position
            self.events.append(Event(number, cut=position))
        else:
            start = position if kind == "write" else self.sizes[number]
            self.sizes[number] = max(self.sizes[number], start + len(data))
            self.events.append(Event(number, start=start, data=data))

    def sync(self, place: int | str) -> None:
        for event in self.events:
            event.durable = event.durable or event.place == place

    def pending(self) -> list[Event]:
        return [event for event in self.events if not event.durable]

    def after(self, kept: int) -> Tree:
        """The tree if the first `kept` pending events reached the disk."""
        chosen = {id(event) for event in self.pending()[:kept]}
        names: dict[str, int] = {}
        contents: dict[int, list[int]] = {number: [] for number in self.sizes}
        for event in self.events:
            if not event.durable and id(event) not in chosen:
                continue
            if isinstance(event.place, int):
                apply_naively(contents[event.place], event)
            for word, path, number in event.steps:
                if word == "link":
                    names[path] = number
                else:
                    names.pop(path, None)
        return {path: bytes(contents[number]) for path, number in names.items()}


def parent(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"


def apply_naively(content: list[int], event: Event) -> None:
    size = max(len(content), event.start + len(event.data)) if event.cut is None else event.cut
    while len(content) > size:
        content.pop()
    while len(content) < size:
        content.append(0)
    for index, byte in enumerate(event.data):
        content[event.start + index] = byte


def played(steps: list[Action]) -> tuple[SimulatedDisk, Reference]:
    disk, reference = SimulatedDisk(), Reference()
    for folder in FOLDERS[1:]:
        disk.make_folder(folder)
    disk.sync_folder("/")
    beginning: list[Action] = [("create", path, path, 0, 1) for path in PATHS[:3]]
    for fill, action in enumerate(beginning + steps):
        perform(disk, "", action, fill)
        reference.perform(action, fill)
    return disk, reference


@settings(max_examples=200, deadline=None)
@given(actions(NAME_KINDS + FILE_KINDS))
def test_kept_lost_and_prefix_agree_with_a_naive_model(steps: list[Action]) -> None:
    disk, reference = played(steps)
    found = {label: tree(after) for label, after in disk.crash_states()}
    assert found["kept"] == tree(disk)
    assert found.get("lost", found["kept"]) == reference.after(0)
    shown = list(found.values())
    for kept in range(len(reference.pending()) + 1):
        assert reference.after(kept) in shown


@settings(max_examples=200, deadline=None)
@given(actions(NAME_KINDS + FILE_KINDS))
def test_what_was_synced_is_in_every_state(steps: list[Action]) -> None:
    disk, reference = played(steps)
    pending = reference.pending()
    moving = {path for event in pending for _, path, _ in event.steps}
    still = {path: content for path, content in reference.after(0).items() if path not in moving}
    safe = {
        path: [
            index
            for index in range(len(content))
            if not any(event.reaches(index) for event in pending if event.place == reference.ids[path])
        ]
        for path, content in still.items()
    }
    for label, after in disk.crash_states():
        for path, content in still.items():
            shown = after.content(path)
            assert all(shown[index] == content[index] for index in safe[path]), (label, path)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1300), st.integers(1, 1300)), max_size=4))
def test_a_sector_shows_each_write_whole_or_not_at_all(writes: list[tuple[int, int]]) -> None:
    disk = SimulatedDisk()
    file = disk.create("/a")
    disk.sync_folder("/")
    file.append([b"o" * 1000], 0)
    file.sync()
    for nth, (position, size) in enumerate(writes):
        file.write_at(bytes([nth + 1]) * size, position)
    for label, after in disk.crash_states():
        content = after.content("/a")
        for sector in range(0, len(content), 512):
            assert possible(writes, sector, content[sector : sector + 512]), (label, sector)


def possible(writes: list[tuple[int, int]], sector: int, shown: bytes) -> bool:
    """Whether some of the writes, in their order, make this sector."""
    for subset in range(1 << len(writes)):
        image = (b"o" * 1000).ljust(4096, b"\0")
        for nth, (position, size) in enumerate(writes):
            if subset >> nth & 1:
                image = image[:position] + bytes([nth + 1]) * size + image[position + size :]
        if image[sector : sector + 512].startswith(shown):
            return True
    return False


@settings(max_examples=200, deadline=None)
@given(steps=actions(NAME_KINDS + FILE_KINDS + FOLDER_KINDS))
def test_it_behaves_as_the_real_disk(tmp_path_factory: pytest.TempPathFactory, steps: list[Action]) -> None:
    root = str(tmp_path_factory.mktemp("disk"))
    real, simulated = OsDisk(), SimulatedDisk()
    parts = root.split("/")
    for depth in range(2, len(parts) + 1):
        simulated.make_folder("/".join(parts[:depth]))
    beginning: list[Action] = [
        ("make_folder", "", "", 1, 1),
        *(("create", path, path, 0, 1) for path in PATHS[:3]),
    ]
    for fill, action in enumerate(beginning + steps):
        assert perform(real, root, action, fill) == perform(simulated, root, action, fill), action
    for folder in FOLDERS:
        assert real.exists(root + folder) == simulated.exists(root + folder)
        if real.exists(root + folder):
            assert real.names(root + folder) == simulated.names(root + folder)
    found = {str(path): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}
    assert found == tree(simulated)
    shutil.rmtree(root)
