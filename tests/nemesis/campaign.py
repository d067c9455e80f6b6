"""`python -m tests.nemesis.campaign`: three nodes under faults, clients on all doors, and a checker over all they were told.

A round has topics of its own: clients begin; after each of the round's faults everyone has to be served again, and so many
records more have to be acknowledged; clients end, every partition has to get all its replicas back, everything is read
through three doors, logs are compared on the disks, and the history is checked. How many records there are is a count and
not a time: a slow machine takes longer, and does the same.
"""

import argparse
import contextlib
import errno
import logging
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.attack.campaign import noting
from tests.attack.clients import Client
from tests.attack.foreign import CommittedReader, TransactionalProducer
from tests.attack.node import BUGS
from tests.histories.checker import check
from tests.histories.history import Append, Call, History, Increment, Operation, Outcome, Read, Transaction, Written
from tests.nemesis.console import ConsoleReader
from tests.nemesis.faults import CannotGoOnError, Faults
from tests.nemesis.keys import HASH, LIST, fetch_porcupine, second_opinion, write_calls
from tests.nemesis.load import (
    TO_ALL,
    AnyNode,
    BulkProducer,
    DoorWriter,
    RetryingWriter,
    clients_of_state,
    look_at_all,
    read_committed_through,
    read_through,
)
from tests.nemesis.nodes import NUMBERS, SETTINGS, NemesisCluster
from tests.nemesis.replicas import (
    AFTER_FAULT,
    FULL_SECONDS_MAX,
    create_replicated_topic,
    create_topics,
    different_logs,
    missing_replicas,
    wait_until,
)
from tests.nemesis.topics import NAME

SERVED_SECONDS_MAX = 300
BUG_SECONDS_MAX = 10
LOOK_SECONDS = 0.02
FAULTS_A_ROUND = 5
ROLLING = "rolling restart"
CONSOLES = (1,)
"""The nodes whose consoles are read, if any."""
BULK = 3
_OF_THE_MACHINE = [os.strerror(number) for number in (errno.EIO, errno.ENOSPC, errno.EMFILE)]
FOUND = 3
"""What the program ends with if there are findings."""


def _name_of(operation: Operation) -> str:
    """What is counted of those that were acknowledged; empty: they are not."""
    match operation:
        case Append(topic=topic):
            return "elements of lists" if topic.startswith(LIST) else ""
        case Written(name=name):
            return "fields of hashes" if name.startswith(HASH) else "commits of groups"
        case Transaction():
            return "transactions ended"
        case Increment():
            return "keys counted up"
        case Call(key=key):
            return "topics created or deleted" if key.startswith(NAME) else "calls of shared keys"
        case _:
            return ""


class Round:
    """One history: its clients, and what is left to read when they have ended."""

    def __init__(
        self,
        cluster: NemesisCluster,
        number: int,
        rng: random.Random,
        *,
        is_rolling: bool = False,
        consoles: Sequence[int] = (),
    ) -> None:
        self.cluster = cluster
        self.history = History()
        self.last = ""
        """Who was served last, the last time."""
        self.topics = [f"round-{number}-{each}" for each in range(BULK)]
        self.readers = ["kafka", *rng.sample(sorted(TO_ALL.keys() - {"kafka"}), 2)]
        self.transactions = "" if is_rolling else f"transactions-{number}"
        turns = [[*NUMBERS[place:], *NUMBERS[:place]] for place in range(BULK)]
        placed = dict(zip(self.topics, turns, strict=True))
        if self.transactions:  # of partitions that the lowest node leads: of one that no other has
            placed[self.transactions] = [min(NUMBERS)]
        create_topics(cluster, placed)
        self.bulk = [
            BulkProducer(cluster, self.history, topic, f"librdkafka-{number}-{place}")
            for place, topic in enumerate(self.topics)
        ]
        kind = RetryingWriter if is_rolling else DoorWriter
        writers = [
            kind(cluster, self.history, dialect, self.topics[place % BULK], f"{dialect}-{number}")
            for place, dialect in enumerate(sorted(TO_ALL))
        ]
        self.clients: list[Client] = [*self.bulk, *writers]
        if not is_rolling:
            self.clients += self._clients_that_wait(number)
        self.clients += [ConsoleReader(cluster, self.history, each, self.topics) for each in consoles]

    def _clients_that_wait(self, number: int) -> Iterator[Client]:
        """For whoever keeps what they use."""
        yield from clients_of_state(self.cluster, self.history, self.topics[0], number)
        any_node = AnyNode(self.cluster)
        yield TransactionalProducer(any_node, self.history, self.transactions, f"transactional-{number}", hasty=False)
        yield CommittedReader(any_node, self.history, self.transactions, f"committed-{number}")

    def take_errors(self) -> list[str]:
        """What clients that send again have told whoever uses them, since this was last asked."""
        told: list[str] = []
        for each in self.clients:
            if isinstance(each, BulkProducer | RetryingWriter):
                told += each.errors
                each.errors.clear()
        return told

    def __enter__(self) -> Self:
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.stop.set()

    def ask_for(self, records: int) -> None:
        for each in self.bulk:
            each.more(records // BULK)

    def served(self, seconds: float) -> list[str]:
        """Wait until everyone gets on, and what was asked for is acknowledged; say who does not."""
        before = {client: client.acknowledged for client in self.clients}
        self.last = ""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            waiting = [client for client in self.clients if client.acknowledged <= before[client]]
            if not waiting and not any(each.is_behind for each in self.bulk):
                return []
            self.last = waiting[0].name if waiting else self.last
            threading.Event().wait(LOOK_SECONDS)
        late = [client for client in self.clients if client.acknowledged <= before[client]]
        late += [each for each in self.bulk if each.is_behind and each not in late]
        return [f"{each.name} is not served any more: {each.failure or list(each.troubles)}" for each in late]

    def end(self, seconds: float) -> Iterator[str]:
        """Clients have so long to end; then all replicas are back and equal, and everything is read."""
        deadline = time.monotonic() + seconds
        for client in self.clients:
            client.stop.set()
        for client in self.clients:
            yield from client.finish(max(deadline - time.monotonic(), 0))
        waiting_max = FULL_SECONDS_MAX if seconds else BUG_SECONDS_MAX
        yield from wait_until(lambda: missing_replicas(self.cluster), waiting_max)
        yield from wait_until(lambda: different_logs(self.cluster.folders, self.topics), waiting_max)
        for topic in self.topics:
            for dialect in self.readers:
                with noting(f"{dialect} cannot read {topic}") as found:
                    self.history.add(read_through(self.cluster, dialect, topic))
                yield from found
        if not self.transactions:
            return
        with noting(f"librdkafka cannot read {self.transactions}") as found:
            self.history.add(read_committed_through(self.cluster, self.transactions))
        yield from found
        with noting("groups and keys cannot be looked at") as found:
            self.history.add(*look_at_all(self.cluster, self.clients, self.topics[0]))
        yield from found


def _crashes(said: str) -> list[str]:
    """Errors with their frames, but for those of a disk that was full or gone, and of descriptors that were used up."""
    blocks = re.split(r"^(?=\d{4}-\d\d-\d\d )", said, flags=re.MULTILINE)
    return [
        block[:3000] for block in blocks if "Traceback" in block and not any(word in block for word in _OF_THE_MACHINE)
    ]


class Campaign:
    """A cluster and all that is done to it; `findings` is what it did wrong."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        self._folder = folder
        self._asks_porcupine = asked.porcupine
        self._rng = random.Random(asked.seed)
        self._records = asked.records
        self._bug = asked.bug
        self._without = frozenset(asked.without.split(","))
        self._bag: list[str] = []
        self._consoles = CONSOLES if asked.console else ()
        self.cluster = NemesisCluster(folder, asked.bug, SETTINGS, consoles=self._consoles)
        self.faults = Faults(self.cluster, self._rng)
        self.findings: list[str] = []
        self.history = History()
        """Of the last round."""
        self.totals: Counter[str] = Counter()
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.__exit__(kind, error, trace)

    def draw(self, count: int) -> list[str]:
        """Each kind comes once before any comes again."""
        chosen: list[str] = []
        while len(chosen) < count:
            if not self._bag:
                self._bag = sorted(self.faults.table.keys() - self._without)
                self._rng.shuffle(self._bag)
            chosen.append(self._bag.pop())
        return chosen

    def run_round(self, faults: Sequence[str], *, is_rolling: bool = False) -> None:
        """`is_rolling`: clients that send again, and nobody else."""
        began, number = time.monotonic(), self.totals["rounds"]
        with Round(self.cluster, number, self._rng, is_rolling=is_rolling, consoles=self._consoles) as current:
            self.history = current.history
            self._wait_for_all(current, "the beginning")
            print(f"round {number} begins", flush=True)
            self.faults.served = partial(current.served, SERVED_SECONDS_MAX)
            for fault in faults:
                if self.findings:
                    break
                self._do(fault, current)
            self.findings += current.end(0 if self._bug or self.findings else SERVED_SECONDS_MAX)
        self.findings += check(current.history)
        if self._asks_porcupine:
            self.findings += second_opinion(self._calls(self._folder))
        for node in self.cluster.nodes.values():
            self.findings += [f"node {node.number} says: {each}" for each in _crashes(node.errors())]
        self.seconds += time.monotonic() - began
        before = self.totals["records acknowledged"]
        self._count(current)
        acknowledged = self.totals["records acknowledged"] - before
        print(
            f"round {number}: {len(faults)} faults, {acknowledged} records acknowledged, "
            f"{len(self.findings)} findings, {time.monotonic() - began:.0f} s",
            flush=True,
        )

    def _do(self, fault: str, current: Round) -> None:
        began = time.monotonic()
        current.take_errors()
        current.ask_for(self._records)
        try:
            said = self.faults.do(fault)
        except (CannotGoOnError, RuntimeError) as error:
            self.findings.append(f"after {fault}: {str(error)[-2000:]}")
            print(f"  {fault}: {self.findings[-1]}", flush=True)
            return
        over = time.monotonic()
        self.findings += [f"after {fault}: {each}" for each in self._create_replicated_topic()]
        self._wait_for_all(current, fault)
        if fault == ROLLING:
            self.findings += [f"{fault}: a client was told: {each}" for each in current.take_errors()]
        last = f", {current.last} last" if current.last else ""
        print(
            f"  {fault}: {said}; over after {over - began:.1f} s, all served {time.monotonic() - over:.1f} s later{last}",
            flush=True,
        )

    def _create_replicated_topic(self) -> list[str]:
        """Right after a fault, when a node may still be away or fenced: a topic with a replica on every node."""
        self.totals["topics with three replicas"] += 1
        name = f"{AFTER_FAULT}{self.totals['topics with three replicas']}"
        return create_replicated_topic(self.cluster, name, len(NUMBERS))

    def _wait_for_all(self, current: Round, after: str) -> None:
        """Who has a bug may serve some clients no more: that alone is no finding, the history has to show it."""
        if self._bug:
            current.served(BUG_SECONDS_MAX)
        else:
            self.findings += [f"after {after}: {each}" for each in current.served(SERVED_SECONDS_MAX)]

    def _count(self, current: Round) -> None:
        self.totals["rounds"] += 1
        for each in current.history.operations:
            if isinstance(each, Append) and not each.topic.startswith(LIST):
                self.totals[f"records {each.outcome.value}"] += 1
        for client in current.clients:
            self.totals["connections lost or refused"] += client.troubled
            if isinstance(client, ConsoleReader):
                self.totals["pages of a console"] += client.acknowledged
                self.totals["pages refused in a sentence"] += client.excused
        for page in current.history.operations:
            if isinstance(page, Read) and page.client.startswith("librdkafka"):
                self.totals["twice, by clients that may"] += len(page.records) - len(set(page.records.values()))
        for operation in current.history.operations:
            name = _name_of(operation)
            if name and getattr(operation, "outcome", None) is Outcome.ACKNOWLEDGED:
                self.totals[name] += 1

    def table(self) -> str:
        done = self.faults.counts
        rows = {
            "faults": sum(done[name] for name in self.faults.table),
            "skipped": sum(done[f"{name}: skipped"] for name in self.faults.table),
            **self.totals,
            **done,
            **{f"{name}: reason": reason for name, reason in self.faults.skipped.items()},
            "seconds": round(self.seconds),
            "findings": len(self.findings),
        }
        return "\n".join(f"{name:32} {value}" for name, value in rows.items())

    def _calls(self, folder: Path) -> Path:
        """Those of the last round, written down."""
        calls = (each for each in self.history.operations if isinstance(each, Call))
        write_calls(folder / "calls", calls)
        return folder / "calls"

    def keep(self, folder: Path) -> None:
        """What there is to look at after a finding."""
        self._calls(folder)
        for number, node in self.cluster.nodes.items():
            (folder / f"node-{number}.log").write_text(node.errors(), encoding="utf-8")
            place = Path(node.data_dir)
            with contextlib.suppress(OSError):
                shutil.copy(place / "etcd" / "etcd.log", folder / f"etcd-{number}.log")
            shutil.copytree(place / "topics", folder / f"topics-{number}", dirs_exist_ok=True)
        lines = (f"{operation}\n" for operation in self.history.operations)
        (folder / "history").write_text("".join(lines), encoding="utf-8")
        (folder / "findings").write_text("\n".join(self.findings), encoding="utf-8")


def main() -> int:
    logging.disable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FOUND))  # whoever ends it ends the nodes too
    parser = argparse.ArgumentParser(description="Three nodes under faults, and a checker over everything they said.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0, help="rounds go on until then, if that is later")
    parser.add_argument("--records", type=int, default=3000, help="how many are written meanwhile, for each fault")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--faults", help="names with commas between: each round has these, and not some of all")
    parser.add_argument("--without", default="", help="names with commas between: no round draws these")
    parser.add_argument("--rolling", action="store_true", help="rounds of rolling restarts, under clients that retry")
    parser.add_argument("--porcupine", action="store_true", help="have it check the calls of keys, too (Go 1.24)")
    parser.add_argument("--console", action="store_true", help="read all pages of one node's console meanwhile")
    parser.add_argument("--bug", default="", choices=["", *BUGS], help="plant one")
    asked = parser.parse_args()
    print(f"NEMESIS_SEED={asked.seed}", flush=True)
    if asked.porcupine:
        fetch_porcupine()
    named = None if asked.faults is None else [each for each in asked.faults.split(",") if each]
    named = [ROLLING] if asked.rolling else named
    with (
        tempfile.TemporaryDirectory(prefix="braidlog-nemesis-") as folder,
        Campaign(Path(folder), asked) as campaign,
    ):
        while not campaign.findings and (campaign.totals["rounds"] < asked.rounds or campaign.seconds < asked.seconds):
            faults = campaign.draw(FAULTS_A_ROUND) if named is None else named
            campaign.run_round(faults, is_rolling=asked.rolling)
        print(campaign.table())
        for finding in campaign.findings:
            print(f"FOUND {finding}")
        if campaign.findings:
            kept = Path(tempfile.mkdtemp(prefix="nemesis-found-"))
            campaign.keep(kept)
            print(f"logs, records and history are in {kept}")
        return FOUND if campaign.findings else 0


if __name__ == "__main__":
    sys.exit(main())
