"""What a topic may be called."""

import pytest
from tests.refusals import refused_with

from braidlog.model.errors import Reason
from braidlog.model.names import check_topic_name


@pytest.mark.parametrize("name", ["a", "A-z.0_9", "CON", "...", ".a", "-", "_", "=", "kind=orders", "a" * 249])
def test_legal(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "1 to 249 characters, this one has 0"),
        ("a" * 250, "this one has 250"),
        (".", "'.' is a folder"),
        ("..", "'..' is a folder"),
        ("../x", "characters outside"),
        ("a/b", "characters outside"),
        ("a\0", "characters outside"),
        ("a\n", "characters outside"),
        ("é", "characters outside"),
        ("а", "characters outside"),  # noqa: RUF001 - Cyrillic, on purpose
        ("１", "characters outside"),  # noqa: RUF001 - a digit to Unicode, not to us
    ],
)
def test_illegal(name: str, why: str) -> None:
    with refused_with(Reason.INVALID_TOPIC_NAME, match=why):
        check_topic_name(name)
