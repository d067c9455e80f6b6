"""A reader of one node's console, over HTTP: every page has to answer while nodes come and go, whichever node leads."""

import itertools
import json
import urllib.request
from collections.abc import Sequence

from tests.attack.clients import Client
from tests.nemesis.nodes import NemesisCluster, NemesisNode

from braidlog.testing.history import History

PAUSE_SECONDS = 0.5
ANSWER_SECONDS_MAX = 60.0
RECORDS = 20
PAGES = ("/", "/topics", "/groups", "/transactions", "/keys", "/cluster")


class ConsoleReader(Client):
    """Opens all pages of one console in turn, and downloads records of topics that all nodes lead."""

    node: NemesisNode

    def __init__(self, cluster: NemesisCluster, history: History, number: int, topics: Sequence[str]) -> None:
        super().__init__(cluster[number], history, f"console-{number}")
        records = [f"/api/topics/{topic}/download?follow=0&limit={RECORDS}" for topic in topics]
        self._paths = itertools.cycle([*PAGES, *(f"/topics/{topic}" for topic in topics), *records])

    def work(self) -> None:
        while not self.stop.wait(PAUSE_SECONDS):
            path = next(self._paths)
            page = self.node.network.call(self.node.number, lambda path=path: self._page(path))  # type: ignore[misc]
            if "/download?" in path:
                assert [json.loads(line) for line in page.splitlines()], f"{path}: no records"
            self.acknowledged += 1

    def _page(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.node.admin_url}{path}", timeout=ANSWER_SECONDS_MAX) as answer:
            page: bytes = answer.read()
            return page
