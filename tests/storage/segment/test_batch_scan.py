"""From batch to batch: the chain holds, or the first fault is named."""

import pytest
from tests.storage.building import batch

from braidlog.storage.files import File
from braidlog.storage.segment import batch_scan as walking
from braidlog.storage.segment.batch_scan import BadBatch, find_batch, steps, walk
from braidlog.storage.state.partition_state import EpochHistory
from braidlog.testing.disk import SimulatedDisk


def chain(sizes: list[int]) -> list[bytes]:
    return [batch(bytes([n]) * size, base_offset=n, leader_epoch=n // 3) for n, size in enumerate(sizes)]


def file_of(data: bytes) -> File:
    file = SimulatedDisk().create("/f")
    file.write_at(data, 0)
    return file


EPOCHS = EpochHistory([(0, 0), (1, 3), (2, 6)])


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("window", [61, 64, 100, 150, 1000])
def test_every_batch_comes_whole_whatever_the_window(monkeypatch: pytest.MonkeyPatch, check: bool, window: int) -> None:
    monkeypatch.setattr(walking, "CHECK_WINDOW_BYTES", window)
    monkeypatch.setattr(walking, "HEADER_WINDOW_BYTES", window)
    batches = chain([1, 300, 0, 7, 90, 500, 2, 3])
    data = b"".join(batches)
    found = list(walk(file_of(b"head" + data), 4, 4 + len(data), 0, epochs=EPOCHS, check=check))
    assert [f.header.base_offset for f in found] == list(range(8))
    assert [f.position for f in found] == [4 + len(b"".join(batches[:n])) for n in range(8)]
    if check:
        assert [f.window[f.at : f.at + f.header.size_bytes] for f in found] == batches


def fault(data: bytes, *, offset: int = 0, end: int | None = None) -> BadBatch:
    with pytest.raises(BadBatch) as caught:
        list(walk(file_of(data), 0, len(data) if end is None else end, offset, epochs=EPOCHS))
    return caught.value


def test_each_link_of_the_chain_is_checked() -> None:
    first, second, third = chain([10, 10, 10])
    bad = fault(first + third)
    assert (bad.position, bad.offset, bad.why) == (len(first), 1, "base offset is 2, 1 is next")
    assert "base offset is 0, 5 is next" in fault(first, offset=5).why
    assert "does not fit in the" in fault(first + second, end=len(first) + len(second) - 1).why
    assert (
        "leader epoch is 9, offset 1 was written in 0" in fault(first + batch(b"x", base_offset=1, leader_epoch=9)).why
    )
    damaged = bytearray(first + second)
    damaged[-1] ^= 1
    assert "CRC" in fault(bytes(damaged)).why
    assert "are left" in fault(first + second[:40]).why


def outcome(data: bytes, *, stepping: bool) -> list[tuple[int, ...] | str]:
    """Where each batch begins and ends, in bytes and offsets; in place of the first that is none, why."""
    found: list[tuple[int, ...] | str] = []
    try:
        if stepping:
            found += steps(file_of(data), 0, len(data), 0, window_bytes=61)
        else:
            for each in walk(file_of(data), 0, len(data), 0, check=False):
                header = each.header
                end = each.position + header.size_bytes
                held = header.record_count, header.attributes, header.producer_id
                found.append((each.position, end, header.base_offset, header.next_offset, *held))
    except BadBatch as bad:
        found.append(
            f"{bad.position} {bad.offset} {bad.why.partition(' (at byte')[0]}"
        )  # which counts from a window's start
    return found


def test_steps_lead_where_a_walk_does_and_fail_where_it_fails() -> None:
    """In every bit of what leads from one batch to the next, and wherever the bytes end."""
    batches = [batch(*[b"x"] * count, base_offset=base) for base, count in ((0, 2), (2, 1), (3, 40))]
    data = b"".join(batches)
    second = len(batches[0])
    assert [found[2:4] for found in outcome(data, stepping=True)] == [(0, 2), (2, 3), (3, 43)]
    for length in range(len(data) + 1):
        assert outcome(data[:length], stepping=True) == outcome(data[:length], stepping=False)
    for byte in (*range(12), *range(23, 27)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[second + byte] ^= 1 << bit
            told = outcome(bytes(damaged), stepping=True)
            assert told == outcome(bytes(damaged), stepping=False)
            assert isinstance(told[-1], str) or told[-1][1] == len(data)


def test_without_a_check_the_records_are_not_looked_at() -> None:
    damaged = bytearray(b"".join(chain([10, 10])))
    damaged[-1] ^= 1
    assert len(list(walk(file_of(bytes(damaged)), 0, len(damaged), 0, check=False))) == 2


@pytest.mark.parametrize("shift", range(0, 40, 3))
def test_the_next_whole_batch_is_found_behind_garbage(monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    monkeypatch.setattr(walking, "CHECK_WINDOW_BYTES", 64)
    old, good = batch(b"old", base_offset=3), batch(b"y" * 100, base_offset=7)
    broken = bytearray(batch(b"z" * 30, base_offset=5))
    broken[70] ^= 4
    data = b"\x02" * shift + old + bytes(broken) + b"\x00\x02" * shift + good
    at = len(data) - len(good)
    assert find_batch(file_of(data), 0, len(data), 5) == (at, 7)
    assert find_batch(file_of(data), 0, len(data), 0) == (shift, 3)
    assert find_batch(file_of(data), at + 1, len(data), 5) is None
    assert find_batch(file_of(data), 0, len(data) - 1, 5) is None
