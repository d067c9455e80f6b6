"""Enumerates the possible states of a disk after a power cut, each once.

Decides which pending changes a machine may keep, lose, tear or reorder. Does not handle: the meaning of bytes.
Synced data is in every state; the bytes of one 512-byte sector come from one side of a write.

| family      | what the machine kept of the pending changes                                             |
|-------------|------------------------------------------------------------------------------------------|
| `kept`      | all                                                                                      |
| `lost`      | none                                                                                     |
| `prefix`    | the first k, in the order they were made                                                 |
| `torn`      | the first k, and of the next write the sectors before, or those after, one boundary      |
| `sized`     | the first k, and of the next write the new length over zeros; or of all writes that      |
| `reordered` | a change to a file lost and later ones kept; or one file's changes kept, another's lost  |
| `names`     | names and bytes differ; the names of one folder differ from those of the others          |
| `mixed`     | a random prefix for each file and folder independently (only with an `rng`)              |

Changes of names within one folder keep their order, as in a journal; writes to a file do not, nor do changes across
files or folders.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import NamedTuple

from braidlog.testing.image import (
    Change,
    Entries,
    FileImage,
    FolderImage,
    NameChange,
    Node,
    Write,
    fingerprint,
)

SECTOR_BYTES = 512
_TEARS_MAX = 8  # a write over more boundaries is torn only at the first, the middle and the last of them
_MIXED_STATES = 16
_NONE = 0  # sequences start at 1: no pending change precedes this
_ALL = 1 << 62


class _Choice(NamedTuple):
    """The state of one file: its first changes, then `instead`, then its changes in [resume, stop)."""

    first: int
    instead: tuple[Change, ...] = ()
    resume: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """Changes of bytes (of names) below the bound are kept, except for the files (folders) listed separately."""

    label: str
    bytes_below: int
    names_below: int
    files: Mapping[FileImage, _Choice] = field(default_factory=dict)
    folders: Mapping[FolderImage, int] = field(default_factory=dict)


class _Step(NamedTuple):
    """A pending change: the `nth` of those of `node`."""

    change: Change | NameChange
    node: Node
    nth: int
    path: str


def crash_trees(
    root: FolderImage, *, limit: int | None, rng: Random | None, prefixes_max: int, seen: set[int]
) -> Iterator[tuple[str, FolderImage]]:
    """Yield each state not in `seen`, with the plan's label; with `rng`, in random order."""
    planner = _Planner(root, rng, prefixes_max)
    plans: Iterable[_Plan] = planner.plans()
    if rng is not None:
        shuffled = list(plans)
        rng.shuffle(shuffled)
        plans = shuffled
    return islice(_distinct(root, plans, seen), limit)


def _distinct(root: FolderImage, plans: Iterable[_Plan], seen: set[int]) -> Iterator[tuple[str, FolderImage]]:
    builder = _Builder()
    for plan in plans:
        tree = builder.build(root, plan)
        mark = fingerprint(tree)
        if mark not in seen:
            seen.add(mark)
            yield plan.label, tree


class _Planner:
    """Lists the plans without building trees, so that choosing a few of many plans is cheap."""

    def __init__(self, root: FolderImage, rng: Random | None, prefixes_max: int) -> None:
        self._rng = rng
        self._prefixes_max = prefixes_max
        self._files: dict[FileImage, str] = {}
        self._folders: dict[FolderImage, str] = {root: "/"}
        self._reach(root, "")
        nodes: list[tuple[Node, str]] = [*self._files.items(), *self._folders.items()]
        steps = [_Step(change, node, nth, path) for node, path in nodes for nth, change in enumerate(node.pending)]
        self._steps = sorted(steps, key=lambda step: step.change.sequence)

    def _reach(self, folder: FolderImage, folder_path: str) -> None:
        for node, name in folder.nodes().items():
            path = f"{folder_path}/{name}"
            if isinstance(node, FileImage):
                node.merge_synced()
                self._files[node] = path
            else:
                self._folders[node] = path
                self._reach(node, path)

    def plans(self) -> Iterator[_Plan]:
        yield _Plan("kept", _ALL, _ALL)
        yield _Plan("lost", _NONE, _NONE)
        picked = [(number, self._steps[number]) for number in self._pick(len(self._steps))]
        for number, step in picked:
            bound = step.change.sequence
            yield _Plan(f"prefix {number} of {len(self._steps)}", bound, bound)
        for number, step in picked:
            yield from self._broken_writes(number, step)
        yield from self._all_sized()
        yield from self._reordered()
        if any(folder.pending for folder in self._folders):
            yield from self._parted_names(picked)
        yield from self._mixed()

    def _pick(self, count: int) -> Sequence[int]:
        """Return all of range(count), or as many as the cap allows: evenly spread, or random."""
        cap = self._prefixes_max
        if count <= cap:
            return range(count)
        if self._rng is not None:
            return sorted(self._rng.sample(range(count), cap))
        return [number * (count - 1) // max(1, cap - 1) for number in range(cap)]

    def _broken_writes(self, number: int, step: _Step) -> Iterator[_Plan]:
        """Yield plans with a power cut during this write."""
        write, node, nth, path = step
        if not isinstance(write, Write) or not isinstance(node, FileImage):
            return
        where = f"{number} of {len(self._steps)} {path}"
        bound = write.sequence
        yield _Plan(f"sized {where}", bound, bound, {node: _Choice(nth, (write.sized(),))})
        for boundary in _tears(write):
            cut = boundary - write.position
            head = Write(write.sequence, write.position, write.data[:cut])
            tail = Write(write.sequence, boundary, write.data[cut:])
            yield _Plan(f"torn {where} before {boundary}", bound, bound, {node: _Choice(nth, (head,))})
            yield _Plan(f"torn {where} after {boundary}", bound, bound, {node: _Choice(nth, (tail,))})
            yield _Plan(f"torn {where} sized {boundary}", bound, bound, {node: _Choice(nth, (head, write.sized()))})

    def _all_sized(self) -> Iterator[_Plan]:
        sized = {
            node: _Choice(0, tuple(change.sized() if isinstance(change, Write) else change for change in node.pending))
            for node in self._files
            if node.pending
        }
        if sized:
            yield _Plan("sized all", _ALL, _ALL, sized)
        for node, choice in sized.items():
            yield _Plan(f"sized all {self._files[node]}", _ALL, _ALL, {node: choice})

    def _reordered(self) -> Iterator[_Plan]:
        for node, path in self._files.items():
            count = len(node.pending)
            if count == 0:
                continue
            yield _Plan(f"reordered {path} lost", _ALL, _ALL, {node: _Choice(0)})
            yield _Plan(f"reordered {path} kept", _NONE, _ALL, {node: _Choice(count)})
            for index in self._pick(count - 1):
                change = node.pending[index]
                # A lost truncate leaves the old length; a lost write under a kept one leaves a hole.
                instead = (change.sized(),) if isinstance(change, Write) else ()
                label = f"reordered {path} without {index} of {count}"
                yield _Plan(label, _ALL, _ALL, {node: _Choice(index, instead, index + 1, count)})
                yield _Plan(f"{label}, next kept", _ALL, _ALL, {node: _Choice(index, instead, index + 1, index + 2)})

    def _parted_names(self, picked: Iterable[tuple[int, _Step]]) -> Iterator[_Plan]:
        for number, step in picked:
            if isinstance(step.node, FileImage):
                bound = step.change.sequence
                yield _Plan(f"names kept, bytes up to {number}", bound, _ALL)
                yield _Plan(f"names lost, bytes up to {number}", bound, _NONE)
        for folder, path in self._folders.items():
            for index in self._pick(len(folder.pending) + 1 if folder.pending else 0):
                bound = _ALL if index == len(folder.pending) else folder.pending[index].sequence
                label = f"names {index} of {len(folder.pending)} in {path}"
                for bytes_word, bytes_below in (("kept", _ALL), ("lost", _NONE)):
                    for others_word, others_below in (("kept", _ALL), ("lost", _NONE)):
                        words = f"{label}, others {others_word}, bytes {bytes_word}"
                        yield _Plan(words, bytes_below, others_below, folders={folder: bound})

    def _mixed(self) -> Iterator[_Plan]:
        if self._rng is None or len(self._steps) < 2:
            return
        for number in range(_MIXED_STATES):
            files = {node: _Choice(self._rng.randint(0, len(node.pending))) for node in self._files if node.pending}
            folders = {
                folder: self._rng.choice([_ALL, *(change.sequence for change in folder.pending)])
                for folder in self._folders
            }
            yield _Plan(f"mixed {number}", _ALL, _ALL, files, folders)


def _tears(write: Write) -> Sequence[int]:
    """Return the sector boundaries strictly inside a write, as positions in the file. Empty: the write is atomic."""
    first = (write.position // SECTOR_BYTES + 1) * SECTOR_BYTES
    boundaries = range(first, write.position + len(write.data), SECTOR_BYTES)
    if len(boundaries) <= _TEARS_MAX:
        return boundaries
    return (boundaries[0], boundaries[len(boundaries) // 2], boundaries[-1])


class _Builder:
    """Builds trees of plans. Consecutive plans differ in one file, so the last content of each file is cached."""

    def __init__(self) -> None:
        self._recent: dict[FileImage, tuple[_Choice, bytes]] = {}
        self._whole: dict[FileImage, bytes] = {}

    def build(self, root: FolderImage, plan: _Plan) -> FolderImage:
        made: dict[FileImage, FileImage] = {}

        def build_folder(folder: FolderImage) -> FolderImage:
            entries: Entries = {}
            for name, node in _kept_entries(folder, plan).items():
                if isinstance(node, FolderImage):
                    entries[name] = build_folder(node)
                else:
                    if node not in made:
                        made[node] = FileImage(self._content(node, plan))
                    entries[name] = made[node]
            return FolderImage(entries)

        return build_folder(root)

    def _content(self, node: FileImage, plan: _Plan) -> bytes:
        pending = node.pending
        choice = plan.files.get(node)
        if choice is None:
            choice = _Choice(_count_below(pending, plan.bytes_below))
        if choice == _Choice(0):
            return node.base
        if choice == _Choice(len(pending)):
            if node not in self._whole:
                self._whole[node] = _replay(node, choice)
            return self._whole[node]
        recent = self._recent.get(node)
        if recent is None or recent[0] != choice:
            recent = self._recent[node] = (choice, _replay(node, choice))
        return recent[1]


def _replay(node: FileImage, choice: _Choice) -> bytes:
    image = bytearray(node.base)
    for change in islice(node.pending, choice.first):
        change.apply(image)
    for change in choice.instead:
        change.apply(image)
    for change in node.pending[choice.resume : choice.stop]:
        change.apply(image)
    return bytes(image)


def _kept_entries(folder: FolderImage, plan: _Plan) -> Entries:
    kept = _count_below(folder.pending, plan.folders.get(folder, plan.names_below))
    if kept == 0:
        return folder.base
    entries = dict(folder.base)
    for change in islice(folder.pending, kept):
        change.apply(entries)
    return entries


def _count_below(changes: Sequence[Change] | Sequence[NameChange], bound: int) -> int:
    if not changes or bound == _NONE:
        return 0
    if bound == _ALL:
        return len(changes)
    return bisect_left(changes, bound, key=lambda change: change.sequence)
