"""The small expression that chooses records."""

import random

import pytest

from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.console.records.record_filter import FilterError, parse_filter

VALUE = b'{"total": 12.5, "items": [{"gift": true}], "none": null, "name": "Ada", "a-b": 1}'
RECORD = ConsumedRecord("t", 2, 5, b"c-1", VALUE, (("kind", b"refund-1"), ("kind", b"second"), ("flag", None)), 1_000)
BARE = ConsumedRecord("t", 0, 0, None, None)
BINARY = ConsumedRecord("t", 0, 1, b"\xff", b"\xff\x00")


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("value.total > 10", True),
        ("value.total > 12.5", False),
        ("value.total >= 12.5 and value.total <= 12.5", True),
        ('key == "c-1"', True),
        ("key == 'c-1'", True),
        ('key != "c-1"', False),
        ('value.total > 10 and (key == "x" or headers.kind begins "refund")', True),
        ('key == "x" or key == "y" and value.total > 10', False),
        ("value.items[0].gift", True),
        ("not value.items[0].gift", False),
        ("value.items[1].gift", False),
        ("value.items[0].gift == true", True),
        ("value.items[0].gift == 1", False),
        ("value.none == null", True),
        ("value.missing == null", False),
        ("value.missing != 3", False),
        ("not value.missing == 3", True),
        ('value.name ends "da"', True),
        ('value.name contains "d"', True),
        ('value contains "total"', True),
        ("value.a-b == 1", True),
        ('value."name" == "Ada"', True),
        ('value.name < "B"', True),
        ("value.name < 3", False),
        ("value.total.deeper == 1", False),
        ("headers.flag == null", True),
        ('headers.none != "x"', False),
        ("partition == 2 and offset >= 5 and time == 1000", True),
    ],
)
def test_what_matches(text: str, matches: bool) -> None:
    assert parse_filter(text)(RECORD) is matches


@pytest.mark.parametrize(
    "text", ["value.a == 1", "value.a", 'key == "x"', 'value contains "x"', "headers.a == null", "time < 3"]
)
def test_a_record_that_lacks_everything_or_is_no_text_matches_nothing(text: str) -> None:
    assert parse_filter(text)(BARE) is False
    assert parse_filter(text)(BINARY) is False


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "at the end"),
        ("key ==", "a value"),
        ("foo == 1", "at character 1, not 'foo'"),
        ("(key", "closing bracket"),
        ("key == 'x' extra", "at character 12"),
        ("value[x]", "number of an item"),
        ("value[1", "]"),
        ("key > true", "order comparisons need"),
        ("value contains 3", "needs a text"),
        ("@", "unexpected '@' at character 1"),
        ("headers", "a dot"),
        ("not " * 50 + "key", "at most 30 deep"),
        ("(" * 200 + "key", "at most 30 deep"),
        ("key " * 400, "at most 1000 characters"),
        ('key == "open', "unexpected"),
    ],
)
def test_what_is_not_understood_is_said_where(text: str, why: str) -> None:
    with pytest.raises(FilterError, match=why.replace("(", r"\(").replace("]", r"\]")):
        parse_filter(text)


def test_garbage_is_refused_or_answers() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chosen = random.Random(seed)
    words = [
        "key",
        "value",
        ".",
        "a",
        "[",
        "0",
        "]",
        "(",
        ")",
        "not",
        "and",
        "or",
        "==",
        "<",
        "contains",
        "'x'",
        "1.5",
        "null",
        "headers",
    ]
    for _ in range(3_000):
        text = " ".join(chosen.choices(words, k=chosen.randrange(1, 9)))
        try:
            test = parse_filter(text)
        except FilterError:
            continue
        for record in (RECORD, BARE, BINARY):
            assert test(record) in (True, False), text
