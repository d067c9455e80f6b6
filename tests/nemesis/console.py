"""A reader of one node's console, over HTTP: every page has to answer while nodes come and go, whichever node leads.

Invariant: an answer is the page, or a sentence that names what cannot be reached; every other answer is a finding.
"""

import html
import http.client
import itertools
import json
import re
from collections.abc import Iterator, Sequence

from tests.attack.clients import Client
from tests.console.asking import Answer, ask
from tests.histories.history import History
from tests.nemesis.nodes import NemesisCluster, NemesisNode

PAUSE_SECONDS = 0.2
RECORDS = 20
PAGES = ("/", "/topics", "/groups", "/transactions", "/keys", "/access", "/connections", "/cluster")
MORE_PAGES = ("/schemas", "/spark", "/settings")
OF_TOPIC = (
    "/topics/{0}",
    "/transactions?topic={0}",
    "/cluster/{0}/0",
    "/api/topics/{0}/tail?follow=0&from=earliest",
    "/api/topics/{0}/download?follow=0&limit={1}",
)
HONEST = re.compile(r"\bnode\b|\bnodes\b|coordinat|leader|replica|metadata|cluster", re.IGNORECASE)
"""What a sentence speaks of that says what cannot be reached."""
DISHONEST = re.compile(r"password|Traceback|Internal Server Error", re.IGNORECASE)


class ConsoleReader(Client):
    """Opens all pages of one console in turn, those of every group too; and reads topics that all nodes lead."""

    node: NemesisNode

    def __init__(self, cluster: NemesisCluster, history: History, number: int, topics: Sequence[str]) -> None:
        super().__init__(cluster[number], history, f"console-{number}")
        self._topics = topics
        self._groups: set[str] = set()
        """Pages of groups that were listed: none of them is ever deleted."""
        self._paths = self._all_paths()
        self._path = next(self._paths)
        self.findings: list[str] = []
        self.excused = 0
        """How often a sentence was told instead of a page."""

    def _all_paths(self) -> Iterator[str]:
        while True:
            yield from (*PAGES, *MORE_PAGES)
            yield from (path.format(topic, RECORDS) for path, topic in itertools.product(OF_TOPIC, self._topics))
            yield from sorted(self._groups)

    def work(self) -> None:
        while not self.stop.wait(PAUSE_SECONDS):
            answer = self.node.network.call(self.node.number, self._ask)
            if (said := _sentence(answer)) is None:
                self.acknowledged += 1
                self._groups |= set(re.findall(r'href="(/groups/[^"?]+)"', answer.text))
                self._path = next(self._paths)
            elif answer.status in (200, 503) and HONEST.search(said) and not DISHONEST.search(said):
                self.excused += 1
            else:
                self.findings.append(f"{self.name}: {self._path}: {answer.status} {said[:500]}")
                self._path = next(self._paths)

    def _ask(self) -> Answer:
        try:
            return ask(f"{self.node.admin_url}{self._path}", accept="text/html")
        except http.client.HTTPException as error:  # it was cut in the middle
            raise ConnectionError(f"{self._path}: {error!r}") from error

    def finish(self, seconds: float) -> list[str]:
        return [*super().finish(seconds), *self.findings]


def _sentence(answer: Answer) -> str | None:
    """Said instead of what was asked for; None: it was given."""
    if answer.status != 200:
        found = re.search(r'id="sentence">([^<]*)<', answer.text)
        return html.unescape(found[1]) if found else answer.text
    if "event-stream" in answer.headers["content-type"]:
        fault = re.search(r"^event: fault\ndata: (.*)$", answer.text, re.MULTILINE)
        return json.loads(fault[1])["text"] if fault else None
    if "jsonl" in answer.headers["content-type"] and not answer.body:
        return "no records"
    return None
