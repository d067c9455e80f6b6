"""YAML as commands print it, read by PyYAML (1.1, the strictest about words that are no text)."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.braid import Braid, fresh

from braidlog.cli.terminal.yaml_text import yaml_of
from braidlog.testing.server import ServerProcess

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@given(VALUES)
def test_a_reader_gets_what_was_written(value: Any) -> None:
    assert yaml.safe_load(yaml_of(value)) == value


@pytest.mark.parametrize(
    "text",
    ["yes", "No", "on", "y", "null", "~", "1e5", "0x1", "1_0", ".5", "12:30", "2026-11-15", "- a", "a: b", "a #b", "", " ",
     "\x85", "\u2028", "\ufeff", "\x7f", "=", "<<", "!x", "%a", "@", "`", "é", "😀", "a\nb", '"', "\\"],
)  # fmt: skip
def test_text_stays_text(text: str) -> None:
    for value in (text, [text], {text: text}):
        assert yaml.safe_load(yaml_of(value)) == value


def test_as_a_person_reads_it() -> None:
    value = {"topic": "orders", "lag": 3, "members": [{"member": "a 1", "partitions": [0, 1]}], "none": [], "at": None}
    assert yaml_of(value).splitlines() == [
        "topic: orders",
        "lag: 3",
        "members:",
        "  - member: a 1",
        "    partitions:",
        "      - 0",
        "      - 1",
        "none: []",
        "at: null",
    ]


def test_commands_print_it(braid_server_shared: ServerProcess) -> None:
    braid, topic = Braid(braid_server_shared), fresh("yaml")
    for name in (topic, fresh("yaml")):
        braid.ok("topic", "create", name, "-p", "2")
    braid.ok("produce", topic, "-p", "0", stdin="a\nb\n")
    group = fresh("yaml-readers")
    braid.ok("consume", topic, "--group", group)
    own = [
        [each for each in load(braid.ok("group", "list", "-o", form)) if each["group"] == group]
        for form, load in (("yaml", yaml.safe_load), ("json", json.loads))
    ]
    assert own[0] == own[1] != [], "groups of others come and go"
    for args in (["topic", "describe", topic], ["cluster", "partitions", topic], ["config", "show"]):
        assert yaml.safe_load(braid.ok(*args, "-o", "yaml")) == json.loads(braid.ok(*args, "-o", "json"))
    for args in (["consume", topic, "--output"], ["cluster", "events", "-o"]):
        documents = list(yaml.safe_load_all(braid.ok(*args, "yaml")))
        assert documents == [json.loads(line) for line in braid.ok(*args, "json").splitlines()]
        assert len(documents) >= 2
    assert braid.ok("consume", topic, "--json").count("\n") == 2
