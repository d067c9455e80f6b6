"""Three nodes on a machine that has too little processor time for them: which of them are taken for dead although they live.

Knows: processes that only burn, `BURNERS_PER_CORE` a core; a light load by librdkafka; every node stopped and started once,
in good order. Counted are verdicts of failure detection by cause, as nodes log them, and nodes that were fenced and registered
again. Refuses to know: nodes that are dead, of which there are none.
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster_nodes import NUMBERS, Cluster, cluster
from benchmarks.failover import QUIET, SECONDS_MAX, TOPIC, Load, settle
from benchmarks.measure import spread

BURNERS_PER_CORE = 3
_VERDICT = re.compile(r"braidlog\.gossip: node \d+, incarnation \d+: (.*)$", re.MULTILINE)
_FENCED = re.compile(r"others took node \d+ for dead")
_LEFT = "left"


@contextmanager
def burners() -> Iterator[int]:
    count = BURNERS_PER_CORE * (os.cpu_count() or 1)
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield count
    finally:
        for each in running:
            each.kill()
            each.wait()


def starved(seconds: float) -> None:
    with cluster("--set", "log.level=warning") as nodes:
        admin = AdminClient(QUIET | {"bootstrap.servers": nodes.addresses})
        for made in admin.create_topics([NewTopic(TOPIC, 1, len(NUMBERS))]).values():
            made.result(SECONDS_MAX)
        load = Load(nodes.addresses)
        settle(nodes, load)
        with burners() as count:
            print(f"{count} processes that burn, a load of {os.getloadavg()[0]:.0f} before")
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                load.send()
            before = _tell(nodes, f"in {seconds:g} s", Counter())
            took = []
            for number in NUMBERS:
                nodes.nodes[number].stop()
                began = time.monotonic()
                nodes.nodes[number].restart()
                took.append(time.monotonic() - began)
                settle(nodes, load)
            _tell(nodes, f"while each was stopped and started once (ready after {spread(took):.1f} s)", before)
        load.finish()
        print(f"  {len(load.acknowledged)} records acknowledged, {len(load.errors)} errors", flush=True)


def _tell(nodes: Cluster, when: str, before: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in nodes.nodes.values():
        said = node.errors()
        found.update(re.sub(r"node \d+", "another", cause) for cause in _VERDICT.findall(said) if cause != _LEFT)
        found["fenced, and registered again"] += len(_FENCED.findall(said))
    new = {cause: times - before[cause] for cause, times in found.items() if times > before[cause]}
    print(f"{when}, of nodes that live: {new or 'no verdict, none fenced'}", flush=True)
    return found
