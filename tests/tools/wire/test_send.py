"""`braid wire send`: one file is both example and test; a difference is pointed at; every dialect's example holds."""

import json
from pathlib import Path

import pytest
from tests.tools.schemas import check
from tests.tools.wire.braid import braid
from tests.tools.wire.toys import serving

from braidlog.testing.server import ServerProcess
from braidlog.wire.dialect import dialects

DIALECTS = sorted(dialects())


@pytest.mark.parametrize("split", ["", "1", "random"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_example_of_every_dialect_holds(node: ServerProcess, dialect: str, split: str) -> None:
    server = f"{dialect}://127.0.0.1:{node.ports[dialect]}"
    done = braid("wire", "send", "--example", dialect, "--server", server, "--split", split)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as expected") == done.stdout.count("\n") >= 5


@pytest.fixture
def echo() -> object:
    with serving(lambda data: data) as port:
        yield port


def _file(folder: Path, text: str) -> str:
    path = folder / "talk.wire"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_difference_is_pointed_at(echo: int, tmp_path: Path) -> None:
    file = _file(tmp_path, "== it differs\n> 00 01 02 03\n< 00 01 FF 03\n")
    done = braid("wire", "send", file, "--server", f":{echo}")
    assert done.returncode == 1
    assert f"DIFFERENT it differs  {file}:3: byte 2 of the answer: received 02, expected FF" in done.stdout
    *_, expected, received, mark = done.stdout.splitlines()
    assert expected == "  expected  00 01 FF 03"
    assert received == "  received  00 01 02 03"
    assert received[mark.index("^^") :][:2] == "02"


DIFFERENT = {
    "> 01\n< 01 02": "no more bytes within 0.2 s; expected 02",
    "> 01 02\n< 01": "1 unexpected bytes",
    "> 01\nclose": "received bytes instead of a close",
    "close": "the connection is still open after 0.2 s",
    "> 01\nnothing 60000ms": "received unexpected bytes",
    "> u32 7\n< u32 ?id\n> u32 8\n< u32 $id": "received 08, expected 07",
}


@pytest.mark.parametrize("text", DIFFERENT)
def test_what_can_differ(echo: int, tmp_path: Path, text: str) -> None:
    file = _file(tmp_path, text if ">" in text else f"> 01\n< 01\n{text}")
    done = braid("wire", "send", file, "--server", f":{echo}", "--timeout", "0.2")
    assert done.returncode == 1
    assert DIFFERENT[text] in done.stdout


def test_a_server_that_hangs_up(tmp_path: Path) -> None:
    with serving(lambda _: None) as port:
        done = braid("wire", "send", _file(tmp_path, "> 01\n< 01"), "--server", f":{port}")
        assert done.returncode == 1
        assert "connection closed, expected 01" in done.stdout
        assert braid("wire", "send", _file(tmp_path, "> 01\nclose"), "--server", f":{port}").returncode == 0


def test_captures_are_used_later_and_given_from_outside(echo: int, tmp_path: Path) -> None:
    file = _file(tmp_path, "> u16 300 $name\n< u16 ?n bytes 3 ?name2\n> u32 $n $name2\n< 00 00 01 2C `bob`\n")
    assert braid("wire", "send", file, "--server", f":{echo}", "--let", "name=bob").returncode == 0
    assert braid("wire", "send", file, "--server", f":{echo}", "--let", "name=eve").returncode == 1


def test_without_expectations_what_comes_is_printed_as_annotated_hex(node: ServerProcess, tmp_path: Path) -> None:
    file = _file(tmp_path, "CA FE 01 04 u32 7 u32 0   # the Mayfly document's way of writing: no arrows\n")
    done = braid("wire", "send", file, "--server", f"mayfly://127.0.0.1:{node.ports['mayfly']}", "--timeout", "0.5")
    assert done.returncode == 0
    assert "< CA FE 01 01 00 00 00 07 00 00 00 00" in done.stdout
    assert "Status=0x01(OK) ReqID=7" in done.stdout
    again = _file(tmp_path, "> CA FE 01 04 u32 7 u32 0\n" + done.stdout)
    assert braid("wire", "send", again, "--server", f":{node.ports['mayfly']}").returncode == 0


def test_one_case_of_several(echo: int, tmp_path: Path) -> None:
    file = _file(tmp_path, "== good\n> 01\n< 01\n== bad\n> 01\n< 02\n")
    assert braid("wire", "send", file, "--server", f":{echo}", "--case", "good").returncode == 0
    assert braid("wire", "send", file, "--server", f":{echo}").returncode == 1


def test_json(echo: int, tmp_path: Path) -> None:
    file = _file(tmp_path, "== good\n> 01\n< 01\n== bad\n> 01\n< 02\n")
    done = braid("wire", "send", file, "--server", f":{echo}", "-o", "json")
    found = json.loads(done.stdout)
    check("wire-send", found)
    assert found["as_expected"] is False
    assert [case["as_expected"] for case in found["cases"]] == [True, False]
    assert found["cases"][1]["difference"]["position"] == 0


def test_dry_run(tmp_path: Path) -> None:
    done = braid("wire", "send", _file(tmp_path, "> LEN `hi`"), "--server", ":1", "--dry-run")
    assert (done.returncode, done.stdout) == (0, "00 00 00 02 68 69\n")


USAGE = {
    ("wire", "send", "--server", ":1"): "pass a FILE, or --example",
    ("wire", "send", "--example", "nothing", "--server", ":1"): "no example",
    ("wire", "send", "-", "--server", "nonsense"): "is not host:port",
    ("wire", "send", "-", "--server", "http://x:1"): "unknown protocol 'http'",
    ("wire", "send", "--example", "mlog", "--server", ":1", "--split", "x"): "neither a number",
}


@pytest.mark.parametrize("words", USAGE)
def test_wrong_usage(words: tuple[str, ...]) -> None:
    done = braid(*words)
    assert done.returncode == 2
    assert USAGE[words] in done.stderr


def test_a_wrong_word_is_wrong_usage_with_its_line() -> None:
    done = braid("wire", "send", "-", "--server", ":1", given=b"> 01\n\n> hello\n")
    assert done.returncode == 2
    assert "line 3: unknown word 'hello'" in done.stderr


def test_nobody_there() -> None:
    with serving(lambda data: data) as port:
        pass
    done = braid("wire", "send", "-", "--server", f":{port}", given=b"> 01")
    assert done.returncode == 3
    assert f"127.0.0.1:{port}" in done.stderr


def test_the_guides_example_holds(node: ServerProcess) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/wire-tools.md").read_text(encoding="utf-8")
    block = next(each for each in guide.split("```") if "== set and get" in each)
    done = braid("wire", "send", "-", "--server", f":{node.ports['mayfly']}", given=block.encode())
    assert (done.returncode, done.stdout) == (0, "as expected set and get\n")
