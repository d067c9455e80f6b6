"""Wireshark, taught by the generated dissector, sees what we see: each field of each message of each protocol."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tools.wire.braid import TapProcess, braid
from tests.tools.wire.tshark import Tree, trees
from tests.wire.peer.vectors import MESSAGES

from braidlog.testing.server import ServerProcess
from braidlog.tools.wire.capture.pcapng import Address, CaptureWriter, segments_of
from braidlog.tools.wire.dissector import SPECS, dissector, kind_of
from braidlog.wire.observer import Side
from braidlog.wire.peer import BETWEEN_NODES
from braidlog.wire.peer.messages import Verdict

FIVE = sorted(SPECS.keys() - {BETWEEN_NODES.name})


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
        assert (
            braid("wire", "send", "--example", dialect, "--server", f"{dialect}://127.0.0.1:{tap.port}").returncode == 0
        )
    if split:
        _cut(capture, tmp_path / "cut.pcapng", int(split))
        capture = tmp_path / "cut.pcapng"
    theirs = trees(capture, dialect, port, script)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    ours = [entry for entry in entries if entry["event"] == "message"]
    if split:  # one side of a connection stands behind the other now
        ours.sort(key=lambda entry: (int(entry["connection"][1:]), entry["side"], entry["position"]))
    # What is no frame at all (another protocol's first bytes) is cut up by Wireshark as it likes: only ours is looked at.
    is_frame = [entry["header_bytes"] > 0 or dialect == "flux" for entry in ours]
    if not all(is_frame):
        theirs = _those_of(theirs, ours, dialect)
        ours = [entry for entry, frame in zip(ours, is_frame, strict=True) if frame]
    assert len(theirs) == len(ours) > 10
    compared = sum(_compare(dialect, tree, entry) for tree, entry in zip(theirs, ours, strict=True))
    assert compared > 25


def _those_of(theirs: list[Tree], ours: list[dict[str, Any]], dialect: str) -> list[Tree]:
    """The trees that stand for frames: in the order of ours, by side and size."""
    wanted = iter(theirs)
    found = []
    for entry in ours:
        if entry["header_bytes"]:
            key = (entry["side"], str(entry["bytes"]))
            found.append(
                next(tree for tree in wanted if (_one(tree, f"{dialect}.from"), _one(tree, f"{dialect}.len")) == key)
            )
    return found


def _one(tree: Tree, name: str) -> str | None:
    return next((value for key, value in tree if key == name), None)


HEADS = {
    "msg",
    "from",
    "len",
    "bad",
    "version",
    "id",
    "payload_length",
    "sender",
    "cmd",
    "consistency",
    "status_code",
    "type",
    "type_byte",
}


def _compare(dialect: str, tree: Tree, entry: dict[str, Any]) -> int:
    """How many values both have, and have alike. What only we have must be a default that is not in the bytes."""
    where = (entry["name"], entry["fields"], tree)
    assert _one(tree, f"{dialect}.from") == entry["side"], where
    assert _one(tree, f"{dialect}.len") == str(entry["bytes"]), where
    if "fault" in entry:
        return 0
    assert _one(tree, f"{dialect}.bad") is None, where
    if dialect != "cursus" or entry["side"] == "client":
        assert _one(tree, f"{dialect}.msg") == entry["name"], where
    mine = _grouped(_flat("", entry["fields"]))
    named = [(key.removeprefix(f"{dialect}."), value) for key, value in tree]
    shown = _grouped((name, value) for name, value in named if name not in HEADS or name in mine)
    for word in ONE_WORD.get(dialect, {}).keys() & shown.keys():
        wanted, kept = ONE_WORD[dialect][word](entry["fields"])
        assert re.findall(r"(?:^|[,:=P])(\d+)(?=[:,]|$)", shown.pop(word)[0]) == wanted, where
        mine = {name: mine[name] for name in kept}
    for name, values in shown.items():
        assert _same(dialect, mine.get(name, []), values), (name, where)
    raw = bytes.fromhex(entry["hex"].replace("**", "2A"))
    for name in mine.keys() - shown.keys():
        assert not re.search(rf'\b{name}["=]'.encode(), raw, re.IGNORECASE), (name, where)
        assert raw[4:6] != b"\xba\x7c", (name, where)  # a batch has all of its fields
    return sum(map(len, shown.values()))


ONE_WORD: dict[str, dict[str, Callable[[dict[str, Any]], tuple[list[str], set[str]]]]] = {
    # What is one word on the line, and several fields of ours: its numbers, and what else the message has.
    "flux": {"messages": lambda fields: ([str(each["offset"]) for each in fields["messages"]], {"hw"})},
    "peer": {"verdict": lambda fields: ([str(Verdict[fields["verdict"]].value)], fields.keys() - {"verdict"})},
    "cursus": {
        # P0:earliest=0:latest=3:leo=3:hwm=3,…
        "offsets": lambda fields: (
            [str(number) for each in fields["offsets"] for number in each.values()],
            {"topic", "partitions"},
        ),
        "count": lambda fields: (
            [str(fields["count"] if "count" in fields else len(fields["records"]))],
            set(_grouped(_flat("", fields))) - {"count"},
        ),
    },
}


def _same(dialect: str, mine: list[str], shown: list[str]) -> bool:
    if dialect == "cursus" and len(shown) == 1 and len(mine) != 1 and shown[0][:1] != "[":
        shown = shown[0].split(",") if shown[0] else []  # names in a line: a,b
    return [_canonical(each) for each in mine] == [_canonical(word) for each in shown for word in _items(dialect, each)]


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every scalar by the name of the member that it, or the list around it, is the value of."""
    if isinstance(value, dict) and set(value) != {"hex"}:
        for inner, each in value.items():
            yield from _flat(inner.lower(), each)
    elif isinstance(value, list):
        for each in value:
            yield from _flat(name, each)
    elif value is not None:
        yield name, value["hex"] if isinstance(value, dict) else str(value)


def _items(dialect: str, text: str) -> list[str]:
    """A list in a line of text is one field there: `[0 1 2]`, `a,b`."""
    if dialect in ("flux", "cursus") and text.startswith("[") and text.endswith("]"):
        return re.split(r"[ ,]+", text[1:-1]) if text != "[]" else []
    return [text]


def _canonical(text: str) -> str:
    if any(char < " " or char == "\x7f" for char in text):  # Wireshark shows the bytes
        return text.encode().hex()
    return {"True": "1", "False": "0", "true": "1", "false": "0"}.get(text, text)


def _cut(capture: Path, to: Path, size: int) -> None:
    """The same conversations in segments of a few bytes: Wireshark has to put every message together again."""
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


@pytest.mark.parametrize("split", [1000, 3])
def test_messages_between_nodes(script: Path, tmp_path: Path, split: int) -> None:
    capture = tmp_path / "nodes.pcapng"
    data = b"".join(each.data for each in MESSAGES)
    with capture.open("wb") as file:
        writer = CaptureWriter(file)
        writer.open("a", Address("127.0.0.1", 50_000), Address("127.0.0.1", BETWEEN_NODES.port), 0)
        for at in range(0, len(data), split):
            writer.write("a", Side.CLIENT, data[at : at + split], 0)
    theirs = trees(capture, "peer", BETWEEN_NODES.port, script)
    shown = braid("wire", "decode", str(capture), "--hex", "-o", "json").stdout
    ours = [json.loads(line) for line in shown.splitlines()]
    assert len(theirs) == len(ours) == len(MESSAGES)
    compared = sum(_compare("peer", tree, entry) for tree, entry in zip(theirs, ours, strict=True))
    assert compared > 25
    assert [_one(tree, "peer.sender") for tree in theirs] == [entry["head"]["From"] for entry in ours]


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
    said = {
        "mayfly": bytes.fromhex("CAFE0100000000010000000D000B") + b"secrettoken",
        "cursus": b"\0\0\0\x28AUTH principal=bob token=secrettoken    ",
        "mlog": b"AUTH bob secrettoken\n" + bytes.fromhex("0019000000027b7d"),
    }
    found: list[Tree] = []
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
    with pytest.raises(AssertionError, match="unknown field label"):
        kind_of("f32")
