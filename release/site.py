"""What MkDocs is told beyond mkdocs.yml: folders in the navigation stand for their pages; links that leave docs/ are names.

In the repository those links lead to files that the site does not have: there they stay what they are.
"""

import re
from pathlib import Path
from typing import Any

OUTSIDE = re.compile(
    r"\[([^\]]*)\]\(((?:\.\./)+)((?:examples|src|tests|benchmarks|packaging|release)/[^)]*|[A-Z]+(?:\.md)?)\)"
)

"""Files of the repository that are no pages."""
FOLDER = re.compile(r"\[([^\]]*)\]\([a-z./]+/\)")
RUN = re.compile(r"^( *```[a-z]+) run\b.*$", re.MULTILINE)
"""A block that tests run. To MkDocs it would be no block, and all up to the next one would be."""


def on_config(config: Any) -> Any:  # noqa: ANN401 - MkDocs' own
    config["nav"] = _with_pages(config["nav"], Path(config["docs_dir"]))
    return config


def _with_pages(entry: Any, docs: Path) -> Any:  # noqa: ANN401 - as YAML has it: texts, lists, tables
    if isinstance(entry, dict):
        return {title: _with_pages(inner, docs) for title, inner in entry.items()}
    if isinstance(entry, list):
        found: list[Any] = []
        for each in entry:
            inner = _with_pages(each, docs)
            found.extend(inner if isinstance(each, str) and isinstance(inner, list) else [inner])
        return found
    if entry.endswith("/"):
        pages = [str(path.relative_to(docs)) for path in (docs / entry).glob("*.md")]
        return sorted(pages, key=lambda page: (not page.endswith("README.md"), page))
    return entry


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401 - MkDocs' own
    del page
    markdown = RUN.sub(r"\1", FOLDER.sub(r"\1", markdown))
    return OUTSIDE.sub(lambda found: f"{found[1]} (`{found[3]}` in the repository)", markdown)
