# mypy: disable-error-code="no-untyped-def"
"""Rows: both twins write and read the same, and each dialect's layout says what the dialect itself says."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.twins import require_compiled

from braidlog.codec import varint
from braidlog.codec.batch import rows as built
from braidlog.codec.batch.kernel import encode_records
from braidlog.codec.batch.row_layout import Kind, Layout, Packed, Part, RowForm
from braidlog.codec.errors import ProtocolError
from braidlog.wire.cursus import batch as cursus
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.mlog.connection import ServerConnection as MlogServer
from braidlog.wire.rustlog import binary, jsonform
from braidlog.wire.rustlog import messages as rustlog
from braidlog.wire.rustlog.connection import Request
from braidlog.wire.rustlog.connection import ServerConnection as RustlogServer

NOW_MS = 1_700_000_000_123


def load_plain() -> ModuleType:
    source = Path(varint.__file__).with_name("batch") / "rows.py"
    loader = SourceFileLoader("braidlog_rows_plain", str(source))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


TWINS = {"compiled": built, "plain": load_plain()}

LAYOUTS: dict[str, tuple[Layout, bytes]] = {
    "rustlog binary": (binary.RECORD_ROW, b""),
    "rustlog json": (jsonform.RECORD_ROW, b","),
    "mlog": (mlog.ENTRY_ROW, b","),
    "cursus": (cursus.SHOWN_ROW, b""),
    "every kind": (tuple(Part(kind, b"<t>") for kind in Kind), b"; "),
    "every kind twice": (tuple(Part(kind, b"<text>") for kind in Kind for _ in range(2)), b""),
    "texts of about 16 bytes": (
        (
            *(Part(Kind.LITERAL, b"0123456789abcdefg"[:size]) for size in (15, 16, 17, 0)),
            Part(Kind.KEY_16),
            Part(Kind.LITERAL, b"!"),
        ),
        b"",
    ),
}

optional_bytes = st.none() | st.binary(max_size=40)


headers = st.none() | st.just((("h", b"1"),))
Item = tuple[bytes | None, bytes | None, int]


def section_of(items: list[Item], headers: list[tuple[tuple[str, bytes | None], ...] | None] | None = None) -> bytes:
    keys, values, times = (list(column) for column in zip(*items, strict=True)) if items else ([], [], [])
    return encode_records(values, keys, times, headers, 0)


def write(
    twin: ModuleType, items: list[Item], layout: Layout, between: bytes = b"", base: int = 42
) -> tuple[bytes, int]:
    """All of them: their bytes, and how many they are."""
    form = RowForm(layout, 10**6, between)
    section = section_of(items)
    done = twin.write_rows(
        section, len(items), base, len(items) - 1, 0, None, form, records_max=99, content_bytes_max=10**6
    )
    return done.data, done.count


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "compiled":
        require_compiled()
    return TWINS[request.param]


@given(
    st.lists(st.tuples(optional_bytes, optional_bytes, st.integers(-(2**62), 2**62), headers), max_size=12),
    st.sampled_from(sorted(LAYOUTS)),
    st.booleans(),
    st.data(),
)
def test_both_twins_write_the_same(items, name, plain_only, data) -> None:
    layout, between = LAYOUTS[name]
    plain = [(key, value, time) for key, value, time, _ in items]
    section = bytearray(section_of(plain, [each for *_, each in items]))
    if section and data.draw(st.booleans(), "damaged"):
        section[data.draw(st.integers(0, len(section) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    base = data.draw(st.integers(0, 2**60), "base offset")
    form = RowForm(layout, data.draw(st.integers(0, 400) | st.just(10**6), "room"), between, plain_only)
    limits = {
        "start_offset": base + data.draw(st.integers(-1, 12), "start"),
        "records_max": data.draw(st.integers(0, 12), "records"),
        "content_bytes_max": data.draw(st.integers(0, 200) | st.just(10**6), "bytes"),
        "follows": data.draw(st.booleans(), "follows"),
    }
    append_time = data.draw(st.none() | st.integers(-5, 2**62), "append time")

    def run(twin: ModuleType) -> Any:
        try:
            return tuple(
                twin.write_rows(section, len(items), base, max(len(items) - 1, 0), 0, append_time, form, **limits)
            )
        except ProtocolError as error:
            return str(error)

    wanted = run(TWINS["plain"])
    assert run(built) == wanted
    if not isinstance(wanted, str):
        assert len(wanted[0]) <= form.bytes_max
        assert wanted[1] <= max(limits["records_max"], 1)


def test_rows_end_where_the_limits_are_and_tell_where_to_go_on(twin: ModuleType) -> None:
    section = section_of([(b"k", b"12345", 0)] * 5)

    def run(*, follows: bool = False, room: int = 10**6, start: int = 0, **limits: int) -> Any:
        form, wanted = RowForm(binary.RECORD_ROW, room), {"records_max": 9, "content_bytes_max": 99, **limits}
        done = twin.write_rows(section, 5, 100, 4, 0, None, form, start_offset=start, follows=follows, **wanted)
        return done.count, done.ended.name, done.next_offset

    assert run() == (5, "ALL", -1)
    assert run(start=103) == (2, "ALL", -1)
    assert run(start=105) == (0, "ALL", -1)
    assert run(records_max=2) == (2, "ENOUGH", 102)
    assert run(records_max=0) == (1, "ENOUGH", 101)
    assert run(content_bytes_max=12) == (2, "ENOUGH", 102)
    assert run(content_bytes_max=5) == (1, "ENOUGH", 101)
    assert run(content_bytes_max=5, follows=True) == (0, "ENOUGH", 100)
    assert run(room=18) == (2, "FULL", 102)
    assert run(room=8) == (0, "FULL", 100)


def test_a_record_with_headers_ends_rows_that_are_to_have_none(twin: ModuleType) -> None:
    section = section_of([(None, b"v", 0)] * 3, [None, (("h", b"1"),), None])
    for plain_only, wanted in ((True, (1, "HEADERS", 1)), (False, (3, "ALL", -1))):
        form = RowForm(binary.RECORD_ROW, 10**6, plain_only=plain_only)
        done = twin.write_rows(section, 3, 0, 2, 0, None, form, records_max=9, content_bytes_max=99)
        assert (done.count, done.ended.name, done.next_offset) == wanted


def test_what_is_not_asked_for_is_not_looked_at(twin: ModuleType) -> None:
    section = section_of([(None, b"v", 0)] * 3)
    damaged, form = section[:-1] + b"\x01", RowForm(binary.RECORD_ROW, 10**6)
    done = twin.write_rows(damaged, 3, 0, 2, 0, None, form, records_max=1, content_bytes_max=99)
    assert (done.count, done.next_offset) == (1, 1)
    with pytest.raises(ProtocolError):
        twin.write_rows(damaged, 3, 0, 2, 0, None, form, records_max=3, content_bytes_max=99)


ITEMS = [
    (None, b"value", NOW_MS),
    (b"key", b"", NOW_MS + 1),
    (b"", None, -5),
    (b"k" * 7, b"v" * 255, 2**62),
    (None, bytes(range(256)), 0),
]


def test_rustlog_rows_are_what_its_own_writer_writes(twin: ModuleType) -> None:
    values = [value or b"" for _, value, _ in ITEMS]
    server, fetch = RustlogServer(), rustlog.Fetch(group_id="", topic="t", partition=0, offset=0, max_bytes=1, id="x")
    data, count = write(twin, ITEMS, binary.RECORD_ROW)
    request = Request(fetch, rustlog.Form.BINARY)
    packed = server.respond(request, rustlog.PackedFetchResponse(Packed(data, count), 47))
    assert b"".join(packed) == server.respond(request, rustlog.BriefFetchResponse(values, 47))
    shown = [
        rustlog.FetchedRecord(42 + place, min(max(time, 0) * 1000, 2**63 - 1), value or b"", key)
        for place, (key, value, time) in enumerate(ITEMS)
    ]
    data, count = write(twin, ITEMS, jsonform.RECORD_ROW, b",")
    request = Request(fetch, rustlog.Form.JSON)
    packed = server.respond(request, rustlog.PackedFetchResponse(Packed(data, count), 47))
    assert b"".join(packed) == server.respond(request, rustlog.FetchResponse(records=shown, next_offset=47))


def test_mlog_rows_are_what_its_own_writer_writes(twin: ModuleType) -> None:
    entries = tuple(mlog.LogEntry(42 + place, value) for place, (_, value, _) in enumerate(ITEMS))
    data, count = write(twin, ITEMS, mlog.ENTRY_ROW, b",")
    request, server = mlog.FetchBatchRequest("t"), MlogServer()
    packed = server.respond(request, mlog.PackedEntries(Packed(data, count)))
    assert b"".join(packed) == server.respond(request, mlog.FetchBatchResponse(entries))


def test_cursus_rows_are_what_its_own_writer_writes(twin: ModuleType) -> None:
    shown = tuple(
        cursus.BatchRecord(value or b"", key or b"", 42 + place) for place, (key, value, _) in enumerate(ITEMS)
    )
    data, count = write(twin, ITEMS, cursus.SHOWN_ROW)
    packed = cursus.PackedBatch("orders", 3, Packed(data, count))
    for spelling in cursus.Spelling:
        whole = cursus.write_batch(cursus.Batch("orders", 3, shown), spelling)
        assert cursus.packed_head(packed, spelling) + data == whole


def test_a_key_that_is_too_long_ends_the_rows(twin: ModuleType) -> None:
    items: list[Item] = [(b"k" * 0xFFFF, b"a", 0), (b"k" * 0x10000, b"b", 0), (None, b"c", 0)]
    data, count = write(twin, items, cursus.SHOWN_ROW)
    assert count == 1
    assert len(data) == cursus.RECORD_BYTES_MIN + 0xFFFF + 1


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=8), st.binary(max_size=5), st.data()
)
def test_both_twins_read_what_is_there_and_nothing_else(items, rest, data) -> None:
    body = b"".join(
        bytes(18) + len(key).to_bytes(2, "big") + key + bytes(8) + len(value).to_bytes(4, "big") + value + bytes(16)
        for key, value in items
    )
    whole = b"??" + body + rest
    keys = [key or None for key, _ in items]
    wanted = ([value for _, value in items], keys if any(keys) else None, 2 + len(body))
    cut = data.draw(st.integers(0, len(whole)))
    place, bit = data.draw(st.integers(0, max(len(body) - 1, 0))), data.draw(st.integers(0, 7))
    damaged = bytearray(whole)
    if body:
        damaged[2 + place] ^= 1 << bit
    for module in TWINS.values():
        assert module.read_rows(whole, 2, len(items), cursus.PLAIN_ROW) == wanted
        assert module.read_rows(memoryview(whole), 2, len(items), cursus.PLAIN_ROW) == wanted
        if cut < 2 + len(body):
            assert module.read_rows(whole[:cut], 2, len(items), cursus.PLAIN_ROW) is None
    plain, compiled = (
        TWINS[name].read_rows(damaged, 2, len(items), cursus.PLAIN_ROW) for name in ("plain", "compiled")
    )
    assert plain == compiled


def test_a_count_or_a_length_that_lies_is_not_believed(twin: ModuleType) -> None:
    assert twin.read_rows(b"\xff\xff\xff\xffabc", 0, 1, binary.RECORD_ROW) is None
    assert twin.read_rows(b"\x00\x00\x00\x01a", 0, 2**40, binary.RECORD_ROW) is None
    assert twin.read_rows(b"\x00\x00\x00\x01a", 9, 1, binary.RECORD_ROW) is None
    assert twin.read_rows(b"", 0, 0, binary.RECORD_ROW) == ([], None, 0)


def test_what_can_only_be_written_is_not_read(twin: ModuleType) -> None:
    assert twin.read_rows(b"7", 0, 1, (Part(Kind.OFFSET_DECIMAL),)) is None


def test_a_layout_has_an_end(twin: ModuleType) -> None:
    layout = (Part(Kind.OFFSET_64),) * 17
    with pytest.raises(ValueError, match="16 parts"):
        write(twin, [], layout)
    with pytest.raises(ValueError, match="16 parts"):
        twin.read_rows(b"", 0, 0, layout)
