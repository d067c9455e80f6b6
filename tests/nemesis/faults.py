"""What is done to a cluster: one method each, chosen by a seed; over when everything is as it was before, but for what was lost.

Knows: processes, disks, clocks, links, members of etcd. Refuses to know: what clients make of it.
"""

import contextlib
import os
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.nemesis.nodes import NUMBERS, NemesisCluster, NemesisNode
from tests.nemesis.quota import processor_quota
from tests.nemesis.replicas import missing_replicas, topic_name, wait_until

from braidlog.storage.segment.segment_files import DATA_START

TOPICS = "round-"
"""What the names of replicated topics begin with."""
CUT_SECONDS = (0.5, 6.0)
STOPPED_SECONDS = 15.0
"""After a full disk: how long replicas have to come back by themselves."""
TEN_MINUTES_MS = 10 * 60 * 1000
DESCRIPTORS_LEFT = 3
STARVED_SECONDS = 20.0
SLICE_SECONDS = (0.05, 0.4)
STOPPED_SHARE = 0.8
"""Of the time in which a node is starved."""
QUOTA_SHARE = 0.5
"""Of the starvations, in which nodes and members share a quota."""
QUOTA_MS = (15, 40)
"""Of each 100 ms of one processor."""
UNTOUCHED_BYTES = 4096
"""At the end of a file: what is turned there may be taken for a write that was not finished."""


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _stop_often(node: NemesisNode, rng: random.Random, ended: threading.Event) -> None:
    while not ended.is_set():
        stopped = rng.uniform(*SLICE_SECONDS)
        node.pause(stopped)
        ended.wait(stopped * (1 - STOPPED_SHARE) / STOPPED_SHARE)


class CannotGoOnError(Exception):
    """The cluster is not whole again, in words."""


class Faults:
    """`counts` says what was done, `skipped` what could not be, and why."""

    def __init__(self, cluster: NemesisCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.counts: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.served: Callable[[], list[str]] = list
        """Waits until every client is served again; returns the names of those that are not."""
        self.table: dict[str, Callable[[], str]] = {
            "kill -9": self.kill,
            "SIGSTOP": self.stop,
            "starvation": self.starve,
            "rolling restart": self.roll,
            "cut one way": self.cut_one_way,
            "cut link": self.cut_link,
            "cut off": self.cut_off,
            "slow link": self.slow_link,
            "power cut of one": self.cut_power_of_one,
            "power cut of all": self.cut_power_of_all,
            "unsynced lost": self.lose_unsynced,
            "clock": self.turn_clock,
            "full disk": self.fill_disk,
            "descriptors": self.limit_descriptors,
            "flipped bit": self.flip_bit,
            "etcd's leader": self.kill_etcd_leader,
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

    def starve(self) -> str:
        """All nodes get a fifth of the time; or, with their members of etcd, a small share of one processor.

        None of them may be fenced, and every client has to be served meanwhile.
        """
        self._whole()
        nodes = self._cluster.nodes.values()
        before = {node.number: node.registrations() for node in nodes}
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            how = self._begin_starving(stack)
            late = self.served()
            _wait(max(0.0, STARVED_SECONDS - (time.monotonic() - began)))
        flaps = {node.number: node.registrations() - before[node.number] for node in nodes}
        self.counts["registrations while starved"] += sum(flaps.values())
        if late or any(flaps.values()):
            raise CannotGoOnError(f"starved nodes registered again {flaps} times; not served: {late}")
        return f"all nodes, {how}, for {time.monotonic() - began:.1f} s"

    def _begin_starving(self, stack: contextlib.ExitStack) -> str:
        """By a quota, where this process may set one; else by signals."""
        if self._rng.random() < QUOTA_SHARE:
            milliseconds = self._rng.randint(*QUOTA_MS)
            with contextlib.suppress(OSError):
                stack.enter_context(processor_quota([node.pid for node in self._cluster.nodes.values()], milliseconds))
                return f"{milliseconds} ms of each 100 ms"
        stack.enter_context(self._stopped_often())
        return "stopped again and again"

    @contextlib.contextmanager
    def _stopped_often(self) -> Iterator[None]:
        nodes, ended = self._cluster.nodes.values(), threading.Event()
        with ThreadPoolExecutor(len(nodes)) as pool:
            for node in nodes:
                pool.submit(_stop_often, node, random.Random(self._rng.random()), ended)
            try:
                yield
            finally:
                ended.set()

    def roll(self) -> str:
        """All of them, one after the other, in good order, each when the one before is back in all sets."""
        order = self._rng.sample(NUMBERS, len(NUMBERS))
        for number in order:
            self._cluster[number].stop()
            self._cluster[number].restart()
            self._whole()
        return f"nodes {', '.join(map(str, order))}"

    # -- links -------------------------------------------------------------------------------------------------

    def _without_network(self, name: str) -> bool:
        """Whether it has to be left out."""
        if self._cluster.network.reason:
            self.skipped[name] = self._cluster.network.reason
        return name in self.skipped

    def _cut(self, name: str, pairs: Sequence[tuple[int, int]], what: str) -> str:
        if self._without_network(name):
            return ""
        network, seconds = self._cluster.network, self._rng.uniform(*CUT_SECONDS)
        try:
            for sender, receiver in pairs:
                network.cut(sender, receiver)
            _wait(seconds)
        finally:
            network.heal()
        return f"{what} for {seconds:.1f} s"

    def cut_one_way(self) -> str:
        one, other = self._rng.sample(NUMBERS, 2)
        return self._cut("cut one way", [(one, other)], f"from node {one} to node {other}")

    def cut_link(self) -> str:
        one, other = self._rng.sample(NUMBERS, 2)
        return self._cut("cut link", [(one, other), (other, one)], f"between nodes {one} and {other}")

    def cut_off(self) -> str:
        one = self._rng.choice(NUMBERS)
        others = [number for number in NUMBERS if number != one]
        pairs = [pair for other in others for pair in ((one, other), (other, one))]
        return self._cut("cut off", pairs, f"node {one} from both others")

    def slow_link(self) -> str:
        """Everything that a node sends, to clients too."""
        if self._without_network("slow link"):
            return ""
        node, seconds = self._some_node(), self._rng.uniform(*CUT_SECONDS)
        self._cluster.network.slow(node.number)
        try:
            _wait(seconds)
        finally:
            self._cluster.network.heal()
        return f"node {node.number} for {seconds:.1f} s"

    # -- machines ----------------------------------------------------------------------------------------------

    def cut_power_of_one(self) -> str:
        return self._cut_power("power cut of one", [self._rng.choice(NUMBERS)])

    def cut_power_of_all(self) -> str:
        return self._cut_power("power cut of all", list(NUMBERS))

    def _cut_power(self, name: str, numbers: list[int]) -> str:
        reasons = [node.disk.reason for node in self._cluster.nodes.values() if node.disk.reason]
        if reasons:
            self.skipped[name] = reasons[0]
            return ""
        for number in numbers:
            self._cluster[number].cut_power()
        for number in numbers:
            self._cluster[number].power_on()
        self._cluster.start(numbers)
        return f"node {numbers[0]}" if len(numbers) == 1 else "all nodes"

    def lose_unsynced(self) -> str:
        """As POSIX allows it, which is more than ext4 does: names whose folder was not synced are lost too."""
        node = self._some_node()
        node.kill()
        lost = node.lose_unsynced()
        self.counts["names and ends lost"] += lost
        node.restart()
        return f"node {node.number}: {lost} names and ends of files"

    def turn_clock(self) -> str:
        """The wall clock of one node, ahead or back, and right again."""
        node, ahead_ms = self._some_node(), self._rng.choice((TEN_MINUTES_MS, -TEN_MINUTES_MS))
        node.control.set(ahead_ms=ahead_ms)
        _wait(self._rng.uniform(1, 4))
        node.control.set()
        return f"node {node.number} by {ahead_ms // 60_000:+d} minutes"

    def fill_disk(self) -> str:
        """Its member of etcd may end by it; then the node is started anew, as whoever made room would do."""
        node, seconds = self._some_node(), self._rng.uniform(0.5, 2)
        if node.disk.reason:
            self.skipped["full disk"] = node.disk.reason
            return ""
        node.disk.fill()
        try:
            _wait(seconds)
        finally:
            node.disk.clear()
        return f"node {node.number} for {seconds:.1f} s{self._start_if_needed(node)}"

    def _start_if_needed(self, node: NemesisNode) -> str:
        """After a full disk, a node that has stopped, or has a partition that has, is started anew."""
        ended = [what for what, pid in (("the node", node.is_running), ("etcd", node.member_pid())) if not pid]
        if "the node" not in ended and (ended or wait_until(lambda: missing_replicas(self._cluster), STOPPED_SECONDS)):
            node.kill()
        if not node.is_running:
            self.counts["started anew after a full disk"] += 1
            node.restart()
            return f"; started anew, ended had: {', '.join(ended) or 'a partition'}"
        return ""

    def limit_descriptors(self) -> str:
        """A few more than it has open, for a while."""
        node, seconds = self._some_node(), self._rng.uniform(1, 3)
        before = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        opened = max(map(int, os.listdir(f"/proc/{node.pid}/fd"))) + 1
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (opened + DESCRIPTORS_LEFT, before[1]))
        try:
            _wait(seconds)
        finally:
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, before)
        return f"node {node.number}, {opened + DESCRIPTORS_LEFT} for {seconds:.1f} s"

    def flip_bit(self) -> str:
        """In the records of a follower, while it is away: a leader that stops is one no more."""
        node = self._some_node()
        node.stop()
        segments = [
            path
            for path in sorted(Path(node.data_dir).glob("topics/*/0000/*.log"))
            if path.stat().st_size > DATA_START + 2 * UNTOUCHED_BYTES and topic_name(path.parents[1]).startswith(TOPICS)
        ]
        if not segments:
            node.restart()
            return f"node {node.number} has no segment yet that is long enough"
        path = self._rng.choice(segments)
        place = self._rng.randrange(DATA_START, path.stat().st_size - UNTOUCHED_BYTES)
        with path.open("r+b") as file:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1 << self._rng.randrange(8)]))
        self.counts["bits turned"] += 1
        node.restart()
        return f"node {node.number}, {topic_name(path.parents[1])}, byte {place} of {path.name}"

    # -- etcd --------------------------------------------------------------------------------------------------

    def kill_etcd_leader(self) -> str:
        """Together with its own node, or with another."""
        leading = [node for node in self._cluster.nodes.values() if node.leads_members()]
        if not leading:
            return "no member leads"
        (member,) = leading
        node = self._some_node()
        member.kill_member()
        node.kill()
        _wait(self._rng.uniform(0, 2))
        node.restart()
        if member is not node:
            missing = wait_until(lambda: [] if member.member_pid() else [f"the member of node {member.number}"])
            assert not missing, f"{missing[0]} is not started again by its node"
        return f"the member of node {member.number}, and node {node.number}"
