"""`braid wire decode`: raw bytes, hex text, a log or a capture; field by field, and the first bad byte."""

import json
import struct
from pathlib import Path

import pytest
from tests.tools.schemas import check
from tests.tools.wire.braid import TapProcess, braid

from braidlog.testing.server import ServerProcess
from braidlog.tools.wire.capture.pcapng import Address, CaptureError, CaptureWriter, packets_of, segments_of
from braidlog.wire.dialect import dialects
from braidlog.wire.observer import Side

DIALECTS = sorted(dialects())
SET = bytes.fromhex("CAFE0101000000010000000C0003666F6F00000003626172")  # the Mayfly document, length corrected


def test_raw_bytes_field_by_field(tmp_path: Path) -> None:
    file = tmp_path / "set.bin"
    file.write_bytes(SET * 2)
    done = braid("wire", "decode", str(file), "--dialect", "mayfly")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:4] == [
        "c1 <-- RECV [12+12=24 bytes] at byte 0: SET",
        "    Magic        0xCAFE",
        "    Ver          1",
        "    Cmd          0x01(SET)",
    ]
    assert '    key          "foo"' in done.stdout
    assert "at byte 24: SET" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        SET.hex(),
        SET.hex(" ").upper(),
        "CA FE # Magic\n01 # Version\n01 # Command: SET\nu32 1\nu32 len [ u16 len [ `foo` ] u32 len [ `bar` ] ]",
        "> CA FE 01 01 u32 1 LEN 0003 `foo` 00000003 `bar`",
    ],
)
def test_hex_text(text: str) -> None:
    done = braid("wire", "decode", "-", "-d", "mayfly", "-o", "json", "--hex", given=text.encode())
    assert done.returncode == 0, done.stderr
    (found,) = [json.loads(line) for line in done.stdout.splitlines()]
    check("wire-message", found)
    assert (found["name"], found["fields"]["key"], found["fields"]["value"]) == ("SET", "foo", "bar")
    assert found["hex"] == SET.hex(" ").upper()


def test_the_first_bad_byte_is_pointed_at() -> None:
    wrong = SET + SET[:13] + b"\x99" + SET[14:]
    done = braid("wire", "decode", "-", "-d", "mayfly", "--form", "raw", given=wrong)
    assert done.returncode == 1
    *_, said, row, mark = done.stdout.splitlines()
    assert (
        "!! byte 36 (byte 12 of the message): key of 153 bytes" not in done.stdout
    )  # 153 is no fault: 256 is the limit
    assert "byte 38 (byte 14 of the message): key announces 153 bytes, 10 are left" in said
    assert row[mark.index("^^") :][:2] == "66"


def test_a_server_says_it() -> None:
    given = b"V1|7|ERR|BAD_REQUEST|no\n"
    done = braid("wire", "decode", "-", "-d", "flux", "--from", "server", given=given)
    assert done.returncode == 0, done.stdout
    assert "code     BAD_REQUEST" in done.stdout


def test_what_it_is_must_be_said() -> None:
    done = braid("wire", "decode", "-", given=SET)
    assert done.returncode == 2
    assert "--dialect" in done.stderr
    assert braid("wire", "decode", "/no/such/file").returncode == 3


@pytest.mark.parametrize("dialect", DIALECTS)
def test_log_and_capture_tell_the_same(node: ServerProcess, dialect: str, tmp_path: Path) -> None:
    """A tap's text log, its JSON and its capture, decoded: the same messages three times."""
    log, capture = tmp_path / "talk.log", tmp_path / "talk.pcapng"
    with TapProcess(dialect, node.ports[dialect], log, "--hex", "--pcapng", str(capture)) as tap:
        done = braid("wire", "send", "--example", dialect, "--server", f"{dialect}://127.0.0.1:{tap.port}")
        assert done.returncode == 0, done.stdout
    from_log = _decoded(str(log))
    from_capture = _decoded(str(capture), "--dialect", dialect)
    assert from_log == from_capture
    assert len(from_log) > 10
    again = tmp_path / "again.pcapng"
    braid("wire", "decode", str(capture), "--dialect", dialect, "--pcapng", str(again))
    assert _decoded(str(again), "--dialect", dialect) == from_capture


def _decoded(*words: str) -> list[dict[str, object]]:
    done = braid("wire", "decode", *words, "-o", "json", "--hex")
    assert done.returncode in (0, 1), done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for each in found:
        check("wire-message", each)
    # Connections end at different times in the three, so each is looked at by itself.
    return sorted(found, key=lambda each: (int(str(each["connection"])[1:]), each["side"], each["position"]))


# -- captures --------------------------------------------------------------------------------------------------

CLIENT, SERVER = Address("10.0.0.1", 50_000), Address("10.0.0.2", 7275)


def _capture(path: Path, client: Address = CLIENT, server: Address = SERVER) -> bytes:
    with path.open("wb") as file:
        writer = CaptureWriter(file)
        writer.open("a", client, server, 1_700_000_000_123_456_789)
        writer.write("a", Side.CLIENT, SET, 1_700_000_000_223_456_789)
        writer.write("a", Side.SERVER, b"y" * 150_000, 1_700_000_000_323_456_789)
        writer.close("a", 1_700_000_000_423_456_789)
    return path.read_bytes()


@pytest.mark.parametrize(
    "hosts", [("10.0.0.1", "10.0.0.2"), ("::1", "fe80::2"), ("::ffff:10.0.0.1", "10.0.0.2"), ("here", "::1")]
)
def test_a_capture_is_read_back(tmp_path: Path, hosts: tuple[str, str]) -> None:
    data = _capture(tmp_path / "a", Address(hosts[0], 50_000), Address(hosts[1], 7275))
    found = list(segments_of(data))
    assert b"".join(each.data for each in found if each.side is Side.CLIENT) == SET
    assert b"".join(each.data for each in found if each.side is Side.SERVER) == b"y" * 150_000
    assert found[0].time_ns == 1_700_000_000_223_456_789
    assert {each.connection for each in found} == {"c1"}


def test_segments_out_of_order_twice_and_across_the_wrap(tmp_path: Path) -> None:
    """As pcap of ethernet, in the other byte order, with a sequence number that wraps."""

    def packet(sequence: int, data: bytes, flags: int = 24) -> bytes:
        tcp = struct.pack(">HHIIBBHHH", 50_000, 7275, sequence & 0xFFFFFFFF, 0, 0x50, flags, 0, 0, 0) + data
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, bytes(4), bytes([1, 1, 1, 1]))
        return bytes(12) + b"\x08\x00" + ip + tcp

    start = 0xFFFFFFFA
    packets = [
        packet(start - 1, b"", flags=2),
        packet(start + 10, SET[10:]),
        packet(start, SET[:6]),
        packet(start, SET[:6]),
        packet(start + 3, SET[3:10]),
    ]
    file = struct.pack(">IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    file += b"".join(struct.pack(">IIII", 7, 8, len(each), len(each)) + each for each in packets)
    found = list(segments_of(file))
    assert b"".join(each.data for each in found) == SET
    assert found[0].time_ns == 7_000_008_000


def test_a_capture_that_is_cut_off_or_damaged(tmp_path: Path) -> None:
    data = _capture(tmp_path / "a")
    whole = len(list(packets_of(data)))
    for size in range(0, len(data), 997):
        assert len(list(packets_of(data[:size]))) <= whole if size > 3 else True
    with pytest.raises(CaptureError, match="not a pcapng or pcap file"):
        list(packets_of(b"hello world"))
    with pytest.raises(CaptureError, match="invalid block of 7 bytes at byte 28"):
        list(packets_of(data[:32] + struct.pack("<I", 7) + data[36:]))
