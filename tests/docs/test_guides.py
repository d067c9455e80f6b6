"""Every block of a guide that is marked `run` runs, and prints what the guide shows; links of all guides lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.docs.transcript import GUIDES, ROOT, Desk, blocks, matches, steps

from braidlog.cli import main

WHOLE = ("quickstart.md", "testing.md", "embedding.md")
"""Guides in which no command and no program is left out."""
NAMING = ("from-kafka.md", "install.md", "kafka-users.md", "troubleshooting.md", "faq.md", "upgrade.md")
"""Guides whose commands in the middle of a sentence are looked up."""
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(GUIDES.glob("*.md"))}


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if any(each.is_run for each in blocks(text))])
def test_marked_blocks_run(name: str, tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        for block in blocks(TEXTS[name]):
            if block.is_run:
                desk.do(block)


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_left_out(name: str) -> None:
    found = blocks(TEXTS[name])
    assert found
    for block in found:
        assert block.is_run or block.language not in ("console", "python"), block.body


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXTS[name]):
        assert (GUIDES / target).exists(), target


def said_commands(text: str) -> list[list[str]]:
    """Commands of braid in the middle of a sentence, a table or a plain block."""
    lines = [*re.findall(r"`(braid [^`]+)`", text), *re.findall(r"^(braid .+)$", text, re.MULTILINE)]
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("words", [words for name in NAMING for words in said_commands(TEXTS[name])], ids=" ".join)
def test_a_command_that_is_named_exists(words: list[str]) -> None:
    """It is understood, to its last option; nothing is run."""
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    options = {option for each in command.params for option in each.opts if option.startswith("-")}
    assert {word for word in words if re.match(r"--?[a-zA-Z]", word)} <= options


def test_the_comparison_can_fail() -> None:
    assert matches(["a", "…", "d"], ["a", "b", "c", "d"])
    assert matches(["a", "…"], ["a"])
    assert matches(["offset …, done"], ["offset 7, done"])
    assert not matches(["a"], ["a", "b"])
    assert not matches(["a", "c"], ["a", "b"])
    assert not matches(["offset …"], ["position 7"])
    assert not matches(["a", "…", "d"], ["a", "b"])
    assert steps("$ one\nout\n$ two\n^C\n")[1].interrupted
    with pytest.raises(AssertionError, match="output of no command"):
        steps("out\n")


@pytest.mark.parametrize("command", ["sleep 600", "bash -c 'trap \"\" INT; echo shown; while :; do sleep 600; done'"])
def test_a_command_that_does_not_end_is_given_up(command: str, tmp_path: Path) -> None:
    """It shows less than the guide does, or it does not hear the interrupt."""
    with Desk(tmp_path, seconds_max=0.5) as desk, pytest.raises(AssertionError, match="does not end"):
        desk.do(*blocks(f"```console run\n$ {command}\nshown\n^C\n```"))


def test_commands_hear_an_interrupt_also_when_the_tests_run_in_the_background() -> None:
    """Where a shell has made them ignore it."""
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    program = f"import subprocess, sys; import tests.conftest; subprocess.run([sys.executable, '-c', {child!r}])"
    command = ["bash", "-c", 'trap "" INT; exec "$@"', "bash", sys.executable, "-c"]
    for code, deaf in ((child, "True"), (program, "False")):
        heard = subprocess.run([*command, code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert heard.stdout.strip() == deaf
