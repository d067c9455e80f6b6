"""Fail-over when the node that leads is cut off from everybody, clients too, and hears of it by silence alone.

Knows: network namespaces, a bridge between them (tests/nemesis), and how a node is taken from it: nothing that anybody sends
arrives any more, and no connection is told that it has ended. It needs root and iproute2. Refuses to know:
cuts in one direction, or of one link (`make nemesis` has them).
"""

import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.nemesis.nodes import NemesisCluster

from benchmarks.cluster_nodes import RunningNodes
from benchmarks.failover import Fault, Mend, failovers


def _cut_off(_: RunningNodes, number: int) -> Mend:
    _link(number, "nomaster")
    return lambda: _link(number, "master", "hub")


def _link(number: int, *words: str) -> None:
    subprocess.run(["ip", "link", "set", f"node{number}", *words], check=True)


CUT = Fault("network cut", _cut_off, (1.0, 2.5))


def cut(count: int) -> None:
    """In a process of its own, which moves into a network of its own."""
    process = multiprocessing.get_context("spawn").Process(target=_cut, args=(count,))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)


def _cut(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder, NemesisCluster(Path(folder)) as made:
        if made.network.reason:
            sys.exit(f"cut: {made.network.reason}")
        nodes = RunningNodes(made.nodes)
        nodes.meet()
        failovers(nodes, CUT, count)
