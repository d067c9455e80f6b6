# mypy: disable-error-code="no-untyped-def"
"""Rows: both twins write and read the same, and each dialect's layout says what the dialect itself says."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.twins import require_compiled

from braidlog.codec import rows as built
from braidlog.codec import varint
from braidlog.codec.columns import Columns
from braidlog.codec.kernel import encode_records
from braidlog.codec.layout import Kind, Layout, Packed, Part
from braidlog.wire.cursus import batch as cursus
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.mlog.connection import ServerConnection as MlogServer
from braidlog.wire.rustlog import binary, jsonform
from braidlog.wire.rustlog import messages as rustlog
from braidlog.wire.rustlog.connection import Request
from braidlog.wire.rustlog.connection import ServerConnection as RustlogServer

NOW_MS = 1_700_000_000_123


def load_plain() -> ModuleType:
    source = Path(varint.__file__).with_name("rows.py")
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
}

optional_bytes = st.none() | st.binary(max_size=40)
records = st.lists(st.tuples(optional_bytes, optional_bytes, st.integers(-(2**62), 2**62)), max_size=12)


def columns_of(items: list[tuple[bytes | None, bytes | None, int]], base_offset: int = 0) -> Columns:
    columns = Columns()
    if items:
        keys, values, times = (list(column) for column in zip(*items, strict=True))
        section = encode_records(values, keys, times, None, 0)
        columns.append(section, len(items), base_offset, len(items) - 1, 0)
    columns.finish()
    return columns


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "compiled":
        require_compiled()
    return TWINS[request.param]


@given(records, st.integers(0, 2**60), st.sampled_from(sorted(LAYOUTS)), st.integers(0, 400), st.integers(0, 12))
def test_both_twins_write_the_same(items, base_offset, name, bytes_max, count) -> None:
    layout, between = LAYOUTS[name]
    columns = columns_of(items, base_offset)
    wanted = TWINS["plain"].write_rows(columns, layout, rows=count, bytes_max=bytes_max, between=between)
    assert built.write_rows(columns, layout, rows=count, bytes_max=bytes_max, between=between) == wanted
    assert len(wanted[0]) <= bytes_max
    assert wanted[1] <= min(count, len(items))


ITEMS = [
    (None, b"value", NOW_MS),
    (b"key", b"", NOW_MS + 1),
    (b"", None, -5),
    (b"k" * 7, b"v" * 255, 2**62),
    (None, bytes(range(256)), 0),
]


def test_rustlog_rows_are_what_its_own_writer_writes(twin: ModuleType) -> None:
    columns = columns_of(ITEMS, 42)
    values = [value or b"" for _, value, _ in ITEMS]
    server, fetch = RustlogServer(), rustlog.Fetch(group_id="", topic="t", partition=0, offset=0, max_bytes=1, id="x")
    data, count = twin.write_rows(columns, binary.RECORD_ROW, rows=99, bytes_max=10**6)
    request = Request(fetch, rustlog.Form.BINARY)
    packed = server.respond(request, rustlog.PackedFetchResponse(Packed(data, count), 47))
    assert b"".join(packed) == server.respond(request, rustlog.BriefFetchResponse(values, 47))
    shown = [
        rustlog.FetchedRecord(42 + place, min(max(time, 0) * 1000, 2**63 - 1), value or b"", key)
        for place, (key, value, time) in enumerate(ITEMS)
    ]
    data, count = twin.write_rows(columns, jsonform.RECORD_ROW, rows=99, bytes_max=10**6, between=b",")
    request = Request(fetch, rustlog.Form.JSON)
    packed = server.respond(request, rustlog.PackedFetchResponse(Packed(data, count), 47))
    assert b"".join(packed) == server.respond(request, rustlog.FetchResponse(records=shown, next_offset=47))


def test_mlog_rows_are_what_its_own_writer_writes(twin: ModuleType) -> None:
    entries = tuple(mlog.LogEntry(42 + place, value) for place, (_, value, _) in enumerate(ITEMS))
    data, count = twin.write_rows(columns_of(ITEMS, 42), mlog.ENTRY_ROW, rows=99, bytes_max=10**6, between=b",")
    request, server = mlog.FetchBatchRequest("t"), MlogServer()
    packed = server.respond(request, mlog.PackedEntries(Packed(data, count)))
    assert b"".join(packed) == server.respond(request, mlog.FetchBatchResponse(entries))


def test_cursus_rows_are_what_its_own_writer_writes(twin: ModuleType) -> None:
    shown = tuple(
        cursus.BatchRecord(value or b"", key or b"", 42 + place) for place, (key, value, _) in enumerate(ITEMS)
    )
    data, count = twin.write_rows(columns_of(ITEMS, 42), cursus.SHOWN_ROW, rows=99, bytes_max=10**6)
    packed = cursus.PackedBatch("orders", 3, Packed(data, count))
    for spelling in cursus.Spelling:
        whole = cursus.write_batch(cursus.Batch("orders", 3, shown), spelling)
        assert cursus.packed_head(packed, spelling) + data == whole


def test_a_key_that_is_too_long_ends_the_rows(twin: ModuleType) -> None:
    columns = columns_of([(b"k" * 0xFFFF, b"a", 0), (b"k" * 0x10000, b"b", 0), (None, b"c", 0)])
    data, count = twin.write_rows(columns, cursus.SHOWN_ROW, rows=3, bytes_max=10**6)
    assert count == 1
    assert len(data) == cursus.RECORD_BYTES_MIN + 0xFFFF + 1


def test_columns_that_were_not_wanted_are_no_rows(twin: ModuleType) -> None:
    columns = Columns(want_key=False)
    columns.append(encode_records([b"v"] * 9, None, None, None, 0), 9, 0, 8, 0)
    columns.finish()
    with pytest.raises(ValueError, match="wanted"):
        twin.write_rows(columns, cursus.SHOWN_ROW, rows=9, bytes_max=10**6)


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
        twin.write_rows(columns_of([]), layout, rows=0, bytes_max=0)
    with pytest.raises(ValueError, match="16 parts"):
        twin.read_rows(b"", 0, 0, layout)
