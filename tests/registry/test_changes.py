"""A registry's rules over a log in memory: ids, versions, levels, modes, deletions, references; and the log read again."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from braidlog.registry import changes
from braidlog.registry import registry_state as state
from braidlog.registry.changes import Change, Wanted
from braidlog.registry.compatibility import Task, compute
from braidlog.registry.errors import RegistryError
from braidlog.registry.registry_state import Entry, State
from braidlog.registry.schemas import Reference

INT, LONG = '"int"', '"long"'


def record(*names: str, optional: str = "") -> str:
    fields: list[dict[str, Any]] = [{"name": name, "type": "int"} for name in names]
    fields += [{"name": optional, "type": "int", "default": 0}] if optional else []
    return json.dumps({"type": "record", "name": "R", "fields": fields})


class Log:
    """All that was appended, and the state it gives."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.state = State()

    def do(self, decide: Callable[..., Change], *args: Any, **named: Any) -> Any:
        made = decide(self.state, *args, **named)
        self.entries += made.entries
        self.state.apply(made.entries)
        return made.answer

    def register(self, subject: str, text: str, **more: Any) -> int:
        found: int = self.do(changes.register, subject, Wanted(text, **more))["id"]
        return found

    def refuses(self, code: int, decide: Callable[..., Change], *args: Any, **named: Any) -> None:
        before = list(self.entries)
        with pytest.raises(RegistryError) as caught:
            self.do(decide, *args, **named)
        assert caught.value.code == code
        assert self.entries == before

    def again(self, *, compacted: bool) -> State:
        """The state of who reads the log from its start."""
        entries = self.entries
        if compacted:
            last = {key: at for at, (key, _) in enumerate(entries)}
            entries = [each for at, each in enumerate(entries) if last[each[0]] == at and each[1] is not None]
        state = State()
        state.apply(entries)
        return state


def shown(state: State) -> Any:
    return state.subjects, state.schemas, state.levels, state.modes, state.max_id


def test_a_schema_has_one_id_wherever_it_is_registered_and_a_subject_numbers_its_own() -> None:
    log = Log()
    assert log.register("a", INT) == log.register("b", '{"type": "int"}') == log.register("a", INT) == 1
    assert log.register("a", LONG) == 2
    assert [each.version for each in log.state.versions("a", deleted=True)] == [1, 2]
    assert len(log.entries) == 3


def test_who_reads_the_log_again_knows_the_same_compacted_or_not() -> None:
    log = Log()
    for subject in ("a", "b"):
        log.register(subject, record("x"))
        log.register(subject, record("x", optional="y"))
    log.do(changes.set_level, "a", "full_transitive")
    log.do(changes.set_level, None, "NONE")
    log.do(changes.set_mode, "b", "READONLY", force=False)
    log.do(changes.delete_level, "a")
    log.do(changes.delete_version, "a", "1", permanent=False)
    log.register("c", LONG)
    log.do(changes.delete_subject, "c", permanent=False)
    for compacted in (False, True):
        assert shown(log.again(compacted=compacted)) == shown(log.state)
    log.do(changes.delete_subject, "c", permanent=True)
    assert log.state.max_id == 3
    for compacted in (False, True):
        assert shown(log.again(compacted=compacted)) == shown(log.state)


def test_an_id_is_not_given_again_after_what_had_it_was_deleted_for_good_and_compacted_away() -> None:
    log = Log()
    log.register("a", INT)
    log.do(changes.delete_subject, "a", permanent=False)
    log.do(changes.delete_subject, "a", permanent=True)
    log.state = log.again(compacted=True)
    assert not log.state.schemas
    assert log.register("a", LONG) == 2


def test_what_is_not_understood_in_the_log_is_skipped() -> None:
    state = State()
    state.apply([(b"", None), (b"{", b"x"), (b'{"keytype":"NEW","magic":9}', b"[]"), (b'{"keytype":"SCHEMA"}', b"{}")])
    assert shown(state) == shown(State())


def test_a_log_that_confluents_registry_wrote_is_read() -> None:
    """Keys and values as its version 7.7 has them."""
    state = State()
    state.apply(
        [
            (b'{"keytype":"NOOP","magic":0}', None),
            (
                b'{"keytype":"SCHEMA","subject":"t-value","version":1,"magic":1}',
                b'{"subject":"t-value","version":1,"id":1,"md5":"x","schema":"\\"int\\"","deleted":false,"ts":17}',
            ),
            (
                b'{"keytype":"SCHEMA","subject":"t-value","version":2,"magic":1}',
                b'{"subject":"t-value","version":2,"id":2,"schemaType":"JSON","schema":"{}","deleted":true}',
            ),
            (b'{"keytype":"CONFIG","subject":"t-value","magic":0}', b'{"compatibilityLevel":"NONE","alias":null}'),
            (b'{"keytype":"DELETE_SUBJECT","subject":"t-value","magic":0}', b'{"subject":"t-value","version":2}'),
        ]
    )
    versions = state.versions("t-value", deleted=True)
    assert [(each.id, each.schema.type, each.deleted) for each in versions] == [(1, "AVRO", True), (2, "JSON", True)]
    assert state.level("t-value") == "NONE"


@pytest.mark.parametrize(
    ("level", "fits"),
    [  # adding a field with a default, taking away one without, against the last version; then against all
        ("BACKWARD", ("add", "drop", "untyped", "typed")),
        ("BACKWARD_TRANSITIVE", ("add", "drop", "typed")),
        ("FORWARD", ("add", "more", "untyped", "typed")),
        ("FORWARD_TRANSITIVE", ("typed",)),
        ("FULL", ("add", "untyped", "typed")),
        ("FULL_TRANSITIVE", ("typed",)),
        ("NONE", ("add", "drop", "more", "untyped", "typed", "other")),
    ],
)
def test_levels(level: str, fits: tuple[str, ...]) -> None:
    log = Log()
    log.do(changes.set_level, None, "NONE")
    first = json.dumps({"type": "record", "name": "R", "fields": [{"name": "z", "type": "string"}, *_ints("a", "b")]})
    log.register("s", first)
    log.register("s", record("a", "b"))
    log.do(changes.set_level, None, level)
    tries = {
        "add": record("a", "b", optional="c"),
        "drop": record("a"),
        "more": record("a", "b", "c"),
        "untyped": json.dumps(
            {"type": "record", "name": "R", "fields": [{"name": "z", "type": "int", "default": 0}, *_ints("a", "b")]}
        ),
        "typed": json.dumps(
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "z", "type": "string", "default": ""}, *_ints("a", "b")],
            }
        ),
        "other": INT,
    }
    found = [name for name, text in tries.items() if not changes.compatible(log.state, "s", Wanted(text), None)]
    assert tuple(found) == fits
    for name, text in tries.items():
        if name not in fits:
            log.refuses(409, changes.register, "s", Wanted(text))


def _ints(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "type": "int"} for name in names]


def test_deleting_is_done_twice_and_said_with_confluents_codes() -> None:
    log = Log()
    log.refuses(40401, changes.delete_subject, "a", permanent=False)
    log.do(changes.set_level, None, "NONE")
    log.register("a", INT)
    log.register("a", LONG)
    log.refuses(40402, changes.delete_version, "a", "7", permanent=False)
    log.refuses(42202, changes.delete_version, "a", "0", permanent=False)
    log.refuses(40407, changes.delete_version, "a", "1", permanent=True)
    assert log.do(changes.delete_version, "a", "1", permanent=False) == 1
    log.refuses(40406, changes.delete_version, "a", "1", permanent=False)
    log.refuses(40405, changes.delete_subject, "a", permanent=True)
    assert log.register("a", INT) == 1, "the schema is the one it was"
    assert log.do(changes.delete_subject, "a", permanent=False) == [2, 3]
    log.refuses(40404, changes.delete_subject, "a", permanent=False)
    assert log.do(changes.delete_subject, "a", permanent=True) == [1, 2, 3]
    log.refuses(40401, changes.delete_subject, "a", permanent=True)


def test_what_others_refer_to_stays() -> None:
    log = Log()
    log.register("ref", '{"type":"enum","name":"E","symbols":["A"]}')
    refers = {"references": [Reference("E", "ref", 1)]}
    user = '{"type":"record","name":"R","fields":[{"name":"e","type":"E"}]}'
    log.refuses(42201, changes.register, "a", Wanted(user))
    log.refuses(42201, changes.register, "a", Wanted(user, references=[Reference("E", "ref", 2)]))
    log.register("a", user, **refers)
    log.refuses(42206, changes.delete_version, "ref", "1", permanent=False)
    log.refuses(42206, changes.delete_subject, "ref", permanent=False)
    log.do(changes.delete_subject, "a", permanent=False)
    log.do(changes.delete_subject, "ref", permanent=False)
    log.refuses(42206, changes.delete_subject, "ref", permanent=True)


def test_modes() -> None:
    log = Log()
    log.register("a", INT)
    log.do(changes.set_mode, "a", "READONLY", force=False)
    for decide, more in ((changes.register, (Wanted(LONG),)), (changes.set_level, ("FULL",))):
        log.refuses(42205, decide, "a", *more)
    log.refuses(42205, changes.delete_subject, "a", permanent=False)
    log.refuses(42204, changes.set_mode, "a", "WRITE", force=False)
    log.refuses(42205, changes.register, "b", Wanted(LONG, id=9))
    log.refuses(42205, changes.set_mode, None, "IMPORT", force=False)
    log.do(changes.set_mode, "b", "IMPORT", force=False)
    log.refuses(42205, changes.register, "b", Wanted(LONG))
    assert log.register("b", LONG, id=90, version=7) == 90
    log.refuses(42205, changes.register, "b", Wanted(INT, id=90))
    assert log.state.versions("b", deleted=False)[0].version == 7
    log.do(changes.delete_mode, "b")
    log.refuses(40409, changes.delete_mode, "b")
    assert log.register("c", '"string"') == 91


def test_large_versions_are_read_once_however_many_a_subject_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that waited for one reading is decided again with it: no other reading may be forgotten meanwhile."""
    monkeypatch.setattr(state, "READ_CHARACTERS_MAX", 100_000)
    log = Log()
    log.do(changes.set_level, None, "NONE")
    large = [json.dumps({"type": "fixed", "name": "F", "size": each, "doc": "d" * 10_000}) for each in range(30)]
    for text in large:
        log.register("a", text)
    read: list[Task] = []

    def noted(task: Task) -> list[str]:
        read.append(task)
        return compute(task)

    again = State(noted)
    again.apply(log.entries)
    other = Wanted(json.dumps({"type": "fixed", "name": "F", "size": 31, "doc": "d" * 10_000}))
    for _ in range(2):
        with pytest.raises(RegistryError, match="Schema not found"):
            changes.lookup(again, "a", other, deleted=False)
    assert len(read) == len(large) + 2, "those of the log, and the other one as it was sent and as it is kept"
