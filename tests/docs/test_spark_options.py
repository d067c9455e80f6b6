"""The page of options is what the formats say."""

from pathlib import Path

from tests.reference.spark_options import formats, page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spark-options.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make reference"


def test_every_default_is_what_its_option_takes() -> None:
    for declared in formats():
        names = [word.lower() for option in declared.options for word in (option.name, *option.aliases)]
        assert len(names) == len(set(names)), declared.format
        for option in declared.options:
            if option.default not in (None, "required"):
                option.kind.parse(option.default)
            assert option.meaning.endswith("."), option.name
