"""What is done to a cluster: one method each, chosen by a seed; over when everything is as it was before, but for what was lost.

Knows: processes, disks, clocks, links, members of etcd. Refuses to know: what clients make of it.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable

from tests.nemesis.nodes import NUMBERS, NemesisCluster, NemesisNode
from tests.nemesis.replicas import missing_replicas, wait_until


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class CannotGoOnError(Exception):
    """The cluster is not whole again, in words."""


class Faults:
    """`counts` says what was done, `skipped` what could not be, and why."""

    def __init__(self, cluster: NemesisCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.counts: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.table: dict[str, Callable[[], str]] = {
            "kill -9": self.kill,
            "SIGSTOP": self.stop,
            "rolling restart": self.roll,
        }

    def do(self, name: str) -> str:
        """What exactly was done."""
        said = self.table[name]()
        self.counts[f"{name}: skipped" if name in self.skipped else name] += 1
        return said

    def _some_node(self) -> NemesisNode:
        return self._cluster[self._rng.choice(NUMBERS)]

    def _whole(self) -> None:
        missing = wait_until(lambda: missing_replicas(self._cluster))
        if missing:
            raise CannotGoOnError(f"the replicas are not all in sync: {'; '.join(missing)}")

    # -- processes ---------------------------------------------------------------------------------------------

    def kill(self) -> str:
        """Sometimes again when it has just begun to serve."""
        node, times = self._some_node(), self._rng.choice((1, 1, 2))
        away = self._rng.uniform(0, 2)
        for _ in range(times):
            node.kill()
            _wait(away)
            node.restart()
        return f"node {node.number}" + (", twice" if times > 1 else "")

    def stop(self) -> str:
        node, seconds = self._some_node(), self._rng.uniform(0.3, 5)
        node.pause(seconds)
        return f"node {node.number} for {seconds:.1f} s"

    def roll(self) -> str:
        """All of them, one after the other, in good order, each when the one before is back in all sets."""
        order = self._rng.sample(NUMBERS, len(NUMBERS))
        for number in order:
            self._cluster[number].stop()
            self._cluster[number].restart()
            self._whole()
        return f"nodes {', '.join(map(str, order))}"
