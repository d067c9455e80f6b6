"""Wireshark, taught by the generated dissector, sees what we see: each field of each message of each of the five protocols."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.tools.wire.braid import TapProcess, braid
from tests.tools.wire.tshark import Tree, trees

from braidlog.testing.server import ServerProcess
from braidlog.tools.wire.dissector import SPECS, dissector, kind_of

FIVE = sorted(SPECS)

NAMES = {
    # Where the two name a message or a field by different rules: ours by its type, Wireshark's by what stands in the bytes.
    "flux": {"high_watermark": "hw", "records_max": "max", "encoding": "enc", "in_sync": "isr"},
}
UNSHOWN = {
    # Fields that ours makes of several, or of another: `key:value` is one word of a line; records are told in text.
    "flux": {"correlation_id", "key", "value", "acks", "encoding", "records", "wait_ms", "records_max", "assignor"},
    "rustlog": set(),
    "cursus": set(),
    "mlog": set(),
    "mayfly": {"stored", "condition"},
}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lua") / "braidlog.lua"
    done = braid("wire", "dissector")
    assert done.returncode == 0
    path.write_text(done.stdout)
    return path


@pytest.mark.parametrize("split", ["", "3"])
@pytest.mark.parametrize("dialect", FIVE)
def test_tshark_sees_what_we_see(node: ServerProcess, dialect: str, split: str, script: Path, tmp_path: Path) -> None:
    port = node.ports[dialect]
    log, capture = tmp_path / "talk.json", tmp_path / "talk.pcapng"
    with TapProcess(dialect, port, log, "--format", "json", "--hex", "--pcapng", str(capture)) as tap:
        assert braid("wire", "send", "--example", dialect, "--server", f"{dialect}://127.0.0.1:{tap.port}").returncode == 0
    if split:
        _cut(capture, tmp_path / "cut.pcapng", int(split))
        capture = tmp_path / "cut.pcapng"
    theirs = trees(capture, dialect, port, script)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    ours = [entry for entry in entries if entry["event"] == "message"]
    if split:  # both sides of a connection are one behind the other now
        ours.sort(key=lambda entry: (int(entry["connection"][1:]), entry["side"], entry["position"]))
    # What is no frame is nothing to Wireshark.
    ours = [entry for entry in ours if entry["header_bytes"] or dialect == "flux"]
    theirs = [tree for tree in theirs if not (dialect in ("mlog", "mayfly") and _one(tree, f"{dialect}.msg") == "?" and not _is_known(tree, ours, dialect))]
    assert len(theirs) == len(ours) > 10
    compared = 0
    for tree, entry in zip(theirs, ours, strict=True):
        compared += _compare(dialect, tree, entry)
    assert compared > 30


def _is_known(tree: Tree, ours: list[dict[str, Any]], dialect: str) -> bool:
    """Whether a tree without a name stands for one of our messages: then it has a header of its own."""
    return any(entry["name"] == "?" for entry in ours) and _one(tree, f"{dialect}.bad") == "there is no such command"


def _one(tree: Tree, name: str) -> str | None:
    return next((value for key, value in tree if key == name), None)


def _compare(dialect: str, tree: Tree, entry: dict[str, Any]) -> int:
    assert _one(tree, f"{dialect}.from") == entry["side"]
    assert _one(tree, f"{dialect}.len") == str(entry["bytes"])
    if entry.get("fault"):
        assert _one(tree, f"{dialect}.bad") is not None or _one(tree, f"{dialect}.msg") is not None
        return 0
    assert _one(tree, f"{dialect}.bad") is None, (tree, entry)
    if entry["side"] == "client" or dialect in ("mlog", "mayfly", "rustlog", "flux"):
        assert _one(tree, f"{dialect}.msg") == entry["name"]
    compared = 0
    for name, value in entry["fields"].items():
        if name in UNSHOWN[dialect] or value in (None, "", [], {}):
            continue
        key = f"{dialect}.{NAMES.get(dialect, {}).get(name, name).lower()}"
        shown = [each for candidate, each in tree if candidate == key]
        compared += _same(dialect, name, value, shown, tree, entry)
    return compared


def _same(dialect: str, name: str, value: Any, shown: list[str], tree: Tree, entry: dict[str, Any]) -> int:
    """One field of ours against what Wireshark shows under its name; how many values were compared."""
    where = (entry["name"], name, value, shown, tree)
    if dialect == "cursus" and name == "records":
        for record_name in ("offset", "payload", "key", "epoch"):
            theirs = [each for key, each in tree if key == f"cursus.{record_name}"]
            assert theirs == [str(record[record_name]) for record in value], where
        return len(value) * 4
    if dialect == "rustlog" and entry["head"].get("Form") == "binary" and isinstance(value, list) and isinstance(value[0], dict):
        flat = [str(each) for row in value for each in row.values()]
        theirs = [each for key, each in tree if key in (f"rustlog.{name}", "rustlog.id", "rustlog.hw")]
        assert sorted(theirs) == sorted(flat), where
        return len(flat)
    if isinstance(value, list) and dialect in ("mayfly", "rustlog") and entry["head"].get("Form") != "json":
        flat = [each for row in value for each in (row if isinstance(row, list) else [row])]
        assert shown == [str(each) for each in flat], where
        return len(flat)
    if isinstance(value, list | dict):
        # JSON, or a list in a line: as it stands in the bytes.
        (text,) = shown
        assert _normal(text) == _normal(json.dumps(value)) or _words(text) == _words(value), where
        return 1
    if shown == [] and not _is_in_bytes(value, entry):
        return 0  # a default that is not on the wire
    expected = str(int(value)) if isinstance(value, bool) else str(value)
    assert len(shown) == 1, where
    assert shown[0] in (expected, str(value).lower()) or _unbase64(shown[0]) == expected, where
    return 1


def _is_in_bytes(value: Any, entry: dict[str, Any]) -> bool:
    data = bytes.fromhex(entry["hex"].replace("**", "2A"))
    return str(value).lower().encode() in data.lower() or entry["dialect"] in ("mayfly",)


def _normal(text: str) -> str:
    """JSON without blanks, bytes as they are spelled in it."""
    found = re.sub(r'"([A-Za-z0-9+/]+={0,2})"', lambda match: f'"{_unbase64(match[1]) or match[1]}"', text)
    return re.sub(r"\s|null|,?\"(key|headers)\":(null|\[\])?", "", found)


def _words(value: Any) -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value)
    return re.findall(r"[\w.-]+", text)


def _unbase64(text: str) -> str | None:
    import base64  # noqa: PLC0415
    import binascii  # noqa: PLC0415

    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _cut(capture: Path, to: Path, size: int) -> None:
    """The same conversations in segments of a few bytes: Wireshark has to put every message together again."""
    from braidlog.tools.wire.pcapng import Address, CaptureWriter, segments_of  # noqa: PLC0415
    from braidlog.tools.wire.seen import Side  # noqa: PLC0415

    talks: dict[str, dict[Side, bytes]] = {}
    ends: dict[str, tuple[Address, Address]] = {}
    for segment in segments_of(capture.read_bytes()):
        talk = talks.setdefault(segment.connection, dict.fromkeys(Side, b""))
        talk[segment.side] += segment.data
        is_client = segment.side is Side.CLIENT
        ends[segment.connection] = (segment.source, segment.target) if is_client else (segment.target, segment.source)
    with to.open("wb") as file:
        writer = CaptureWriter(file)
        for name, talk in talks.items():
            writer.open(name, *ends[name], 0)
            for side, data in talk.items():
                for at in range(0, len(data), size):
                    writer.write(name, side, data[at : at + size], 0)
            writer.close(name, 0)


def test_wireshark_knows_kafka_by_itself(node: ServerProcess, tmp_path: Path) -> None:
    capture = tmp_path / "talk.pcapng"
    port = node.ports["kafka"]
    with TapProcess("kafka", port, tmp_path / "log", "--pcapng", str(capture)) as tap:
        assert braid("wire", "send", "--example", "kafka", "--server", f":{tap.port}").returncode == 0
    found = trees(capture, "kafka", port)
    assert [value for tree in found for name, value in tree if name == "kafka.topic_name"].count("kafka-example") >= 4
    assert {value for tree in found for name, value in tree if name == "kafka.api_key"} >= {"0", "1", "3", "18", "19"}


def test_a_token_is_not_shown(node: ServerProcess, script: Path, tmp_path: Path) -> None:
    """In a capture by somebody else the bytes are what they are; the dissector does not repeat them as fields."""
    from braidlog.tools.wire.pcapng import Address, CaptureWriter  # noqa: PLC0415
    from braidlog.tools.wire.seen import Side  # noqa: PLC0415

    said = {
        "mayfly": bytes.fromhex("CAFE0100000000010000000D000B") + b"secrettoken",
        "cursus": b"\0\0\0\x28AUTH principal=bob token=secrettoken    ",
        "mlog": b"AUTH bob secrettoken\n" + bytes.fromhex("0019000000027b7d"),
    }
    for dialect, data in said.items():
        capture = tmp_path / f"{dialect}.pcapng"
        with capture.open("wb") as file:
            writer = CaptureWriter(file)
            writer.open("a", Address("127.0.0.1", 50_000), Address("127.0.0.1", 7000), 0)
            writer.write("a", Side.CLIENT, data, 0)
        found = trees(capture, dialect, 7000, script)
        assert found, dialect
        assert "secrettoken" not in str(found)
    assert _one(found[0], "mlog.principal") == "bob"
    assert _one(found[1], "mlog.msg") == "ListTopics"


def test_only_some() -> None:
    done = braid("wire", "dissector", "--dialect", "flux")
    assert '["flux"]' in done.stdout
    assert '["mlog"]' not in done.stdout
    assert len(dissector()) > len(dissector(["flux"]))


def test_a_kind_that_nobody_taught_it_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="does not know"):
        kind_of("f32")
