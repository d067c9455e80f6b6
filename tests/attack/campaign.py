"""`python -m tests.attack.campaign`: clients on all doors, a node under attack, and a checker over everything it said.

A round has topics, groups and keys of its own: clients begin, each of the round's attacks is followed by a proof that everyone is
served again, clients end, everything is read through every door, and the history is checked. Rounds go on over the same data
folder until the time is over.
"""

import argparse
import contextlib
import errno
import logging
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.adapters.doors import DOORS
from tests.attack import clients, foreign, own
from tests.attack.attacked import AttackedNode, Proxies
from tests.attack.clients import TROUBLE, Client
from tests.attack.disk import Disk
from tests.attack.nemeses import Nemeses
from tests.attack.node import BUGS
from tests.histories.checker import check, check_damaged
from tests.histories.history import Append, History, Operation, Outcome, Read

from braidlog.testing.server import ServerProcess

for _name in ("aiokafka", "kafka", "cursus"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # that the node is away is no news here

SERVED_SECONDS_MAX = 120
BUG_SECONDS_MAX = 5
LOOK_SECONDS = 5
BETWEEN_ATTACKS = 150
"""Acknowledgements."""
ATTACKS_A_ROUND = 8
FOUND = 3
"""What the program ends with if there are findings."""


class Round:
    """One history: its clients, and what is left to read when they have ended."""

    def __init__(self, node: AttackedNode, number: int, *, hasty_aborts: bool) -> None:
        self.node = node
        self.history = History()
        self.topic, self.transactions = f"shared-{number}", f"transactions-{number}"
        doors = sorted(DOORS)
        door = DOORS["rustlog"](node)
        for topic in (self.topic, self.transactions):
            door.create(topic)
        door.close()
        self.groups = {f"group-{dialect}-{number}": dialect for dialect in doors}
        self.counters = [f"counter-{number}-{each}" for each in range(2)]
        history = self.history
        self.clients: list[Client] = [
            *(clients.Writer(node, history, dialect, self.topic, f"{dialect}-{number}") for dialect in doors),
            *(clients.Committer(node, history, dialect, self.topic, group) for group, dialect in self.groups.items()),
            *(clients.Counter(node, history, name) for name in self.counters),
            clients.Leaser(node, history, f"lease-{number}"),
            clients.Reader(node, history, self.topic, f"reader-{number}"),
            own.OwnProducer(node, history, self.topic, f"own-{number}"),
            foreign.ConfluentProducer(node, history, self.topic, f"librdkafka-{number}"),
            foreign.KafkaPythonProducer(node, history, self.topic, f"kafkapython-{number}"),
            foreign.AioKafkaProducer(node, history, self.topic, f"aiokafka-{number}"),
            foreign.PublishedCursusProducer(node, history, self.topic, f"cursusclient-{number}"),
            foreign.TransactionalProducer(
                node, history, self.transactions, f"transactional-{number}", hasty=hasty_aborts
            ),
            foreign.CommittedReader(node, history, self.transactions, f"committed-{number}"),
        ]

    def __enter__(self) -> Self:
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.stop.set()

    def served(self, seconds: float = SERVED_SECONDS_MAX, is_over: Callable[[], bool] = bool) -> Iterator[str]:
        """Wait until everyone gets on, or it is over; say who does not."""
        before = {client: client.acknowledged for client in self.clients}
        wanted = sum(before.values()) + BETWEEN_ATTACKS
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        look = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < deadline:
            if time.monotonic() > look:
                if is_over():
                    break
                look = time.monotonic() + LOOK_SECONDS
            waiting = [client for client in self.clients if client.acknowledged <= before[client]]
            if not waiting and sum(client.acknowledged for client in self.clients) >= wanted:
                return
            pause.wait(0.02)
        for client in self.clients:
            if client.acknowledged <= before[client]:
                yield f"{client.name} is not served any more: {client.failure or list(client.troubles)}"

    def end(self, seconds: float) -> Iterator[str]:
        """Clients have so long to end; then everything is read."""
        deadline = time.monotonic() + seconds
        for client in self.clients:
            client.stop.set()
        for client in self.clients:
            yield from client.finish(max(deadline - time.monotonic(), 0))
        history, node = self.history, self.node
        for dialect in sorted(DOORS):
            with noting(f"{dialect} cannot read {self.topic}") as found:
                history.add(clients.read_whole(node, dialect, self.topic, last=True))
            yield from found
        for name, read in (("kcat", foreign.read_with_kcat), ("read_committed", foreign.read_committed)):
            topic = self.transactions if name == "read_committed" else self.topic
            with noting(f"{name} cannot read {topic}") as found:
                page = read(node, topic)
                history.add(*([page] if page is not None else []))
            yield from found
        for group, dialect in self.groups.items():
            with noting(f"{dialect} does not say what {group} has committed") as found:
                history.add(clients.look_at_commit(node, dialect, group, self.topic))
            yield from found
        for counter in self.counters:
            with noting(f"{counter} cannot be read") as found:
                history.add(clients.look_at_counter(node, counter))
            yield from found

    def judge_damaged(self, node: ServerProcess | None, copied: float) -> list[str]:
        """What a node over a damaged copy shows of the topic."""
        if node is None:
            return []
        page: Read | None = None
        with contextlib.suppress(*TROUBLE):
            page = clients.read_whole(node, "kafka", self.topic)
        said = node.errors()
        return check_damaged(self.history, page, copied, reported=" ERROR " in said or " WARNING " in said)


@contextlib.contextmanager
def noting(what: str) -> Iterator[list[str]]:
    """Trouble in the block is a finding."""
    found: list[str] = []
    try:
        yield found
    except TROUBLE as error:
        found.append(f"{what}: {type(error).__name__}: {error}"[:300])


class Campaign:
    """A node, its disk, and all that is done to it; `findings` is what it did wrong."""

    def __init__(self, folder: Path, seed: int, bug: str = "", *, hasty_aborts: bool = False) -> None:
        self._stack = contextlib.ExitStack()
        self._folder = folder
        self._rng = random.Random(seed)
        self._bug = bug
        self._hasty_aborts = hasty_aborts
        self.findings: list[str] = []
        self.history = History()
        """Of the round that had findings."""
        self.totals: Counter[str] = Counter()
        self.seconds = 0.0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.disk = stack.enter_context(Disk(self._folder))
            proxies = stack.enter_context(Proxies())
            self.node = stack.enter_context(AttackedNode(self._folder, self.disk, proxies, self._bug))
            self.nemeses = Nemeses(self.node, self.disk, proxies, self._rng, self._folder)
            self._proxies = proxies
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run_round(self, attacks: Sequence[str] | None = None) -> None:
        """The attacks that are named, or some of all: which, and how each is done, follows from the number it was given."""
        began = time.monotonic()
        chosen = self._rng.sample(sorted(self.nemeses.table), ATTACKS_A_ROUND) if attacks is None else attacks
        with Round(self.node, self.totals["rounds"], hasty_aborts=self._hasty_aborts) as current:
            self.nemeses.judge_damaged = lambda *seen: self.findings.extend(current.judge_damaged(*seen))
            self._wait_for_all(current)
            for attack in chosen:
                print(f"{time.monotonic():.3f} {attack}", flush=True)
                try:
                    self.nemeses.do(attack)
                except RuntimeError as error:
                    self.findings.append(f"after {attack}: {str(error)[-2000:]}")
                    return
                self._wait_for_all(current)
            self._proxies.disarm()
            self.findings += current.end(0 if self.findings or self._bug else SERVED_SECONDS_MAX)
        self.findings += check(current.history)
        if self.findings:
            self.history = current.history
        _, traceback, rest = self.node.errors().partition("Traceback")
        if traceback:
            self.findings.append(f"the node says: {traceback}{rest[:3000]}")
        self.seconds += time.monotonic() - began
        self._count(current)

    def _wait_for_all(self, current: Round) -> None:
        """Who has a bug may serve some clients no more: that alone is no finding, the history has to show it."""
        if self._bug:
            list(current.served(BUG_SECONDS_MAX))
        elif not self.findings and (waiting := list(current.served(is_over=self._has_stopped))):
            if self._has_stopped():
                # After a failed sync a partition takes no writes until it is opened again; a full disk can fail a sync.
                self.nemeses.counts["partition stopped by a full disk"] += 1
                self.nemeses.kill()
                waiting = list(current.served())
            self.findings += waiting

    def _has_stopped(self) -> bool:
        """Whether a partition of this life of the node stopped because there was no room."""
        said = self.node.errors().rpartition(" INFO braidlog.server: up to ")[2]
        return re.search(f"must be reopened: .*{os.strerror(errno.ENOSPC)}", said) is not None

    def _count(self, current: Round) -> None:
        self.totals["rounds"] += 1
        self.totals["clients"] += len(current.clients)
        for operation in current.history.operations:
            self.totals["operations"] += 1
            self.totals[_outcome(operation)] += 1
            if isinstance(operation, Append):
                self.totals["records acknowledged"] += operation.outcome is Outcome.ACKNOWLEDGED

    def table(self) -> str:
        rows = {
            **self.totals,
            **self.nemeses.counts,
            "connections cut within a frame": self._proxies.cuts,
            **{f"{name}: reason": reason for name, reason in self.nemeses.skipped.items()},
            "seconds": round(self.seconds),
            "findings": len(self.findings),
        }
        return "\n".join(f"{name:32} {value}" for name, value in rows.items())


def _outcome(operation: Operation) -> str:
    outcome = getattr(operation, "outcome", None)
    return outcome.value if isinstance(outcome, Outcome) else "looks"


def main() -> int:
    parser = argparse.ArgumentParser(description="A node under attack, and a checker over everything it said.")
    parser.add_argument("--seconds", type=float, default=0, help="rounds go on until then; one at least")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--attacks", help="names with commas between: each round has these, and not some of all")
    parser.add_argument(
        "--history",
        metavar="FILE",
        help="where to write every operation of a round with findings, and what the node said",
    )
    parser.add_argument("--hasty-aborts", action="store_true", help="transactions are aborted with records in flight")
    parser.add_argument("--bug", default="", choices=["", *BUGS], help="plant one")
    asked = parser.parse_args()
    attacks = None if asked.attacks is None else [each for each in asked.attacks.split(",") if each]
    print(f"ATTACK_SEED={asked.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="braidlog-attack-") as folder,
        Campaign(Path(folder), asked.seed, asked.bug, hasty_aborts=asked.hasty_aborts) as campaign,
    ):
        while not campaign.findings:
            campaign.run_round(attacks)
            print(f"-- round {campaign.totals['rounds']}\n{campaign.table()}", flush=True)
            if campaign.seconds >= asked.seconds:
                break
        for finding in campaign.findings:
            print(f"FOUND {finding}")
        if asked.history is not None:
            lines = (f"{operation}\n" for operation in campaign.history.operations)
            Path(asked.history).write_text("".join(lines) + campaign.node.errors(), encoding="utf-8")
        return FOUND if campaign.findings else 0


if __name__ == "__main__":
    sys.exit(main())
