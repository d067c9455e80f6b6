"""What a cluster of that size costs: the image of its metadata, a fail-over, etcd, replicas that fetch.

    .venv/bin/python -m benchmarks.sizing [--nodes 100] [--topics 2000] [--partitions 100] [--replicas 3]

Nothing is started: events, images and messages are made by the code that a node runs, encoded, applied and read back; times are
of the processor, the best of `--repeats`, so that a busy machine changes them little. What is only computed says from what.
docs/guides/sizing.md has the table that it prints.
"""

import argparse
import gc
import resource
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from braidlog.cluster.etcd.entries import ENTRY_BYTES_MAX, PIECE_BYTES, encode_entry
from braidlog.cluster.etcd.etcd_store import COMPACT_TICKS, TICK_SECONDS
from braidlog.cluster.etcd.image_snapshots import IMAGES_KEPT
from braidlog.cluster.etcd.presence import LEASE_SECONDS, RENEWALS
from braidlog.cluster.metadata.events import AssignPartition, ChangeLeader, CreateTopic, Event, FolderMade, RegisterNode
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.local_store import SNAPSHOT_EVERY
from braidlog.cluster.metadata.metadata_store import Entry
from braidlog.model.settings import TopicSettings
from braidlog.replication.control.election import fenced
from braidlog.replication.control.incarnation import Life
from braidlog.replication.replica_state import QUIET_WAIT_MS_MAX
from braidlog.wire.kafka.compiler import read_message, write_message
from braidlog.wire.kafka.messages.data import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)

T = TypeVar("T")
QUOTA_BYTES = 2 * 1024**3
"""etcd's default."""
FETCH_VERSION = 17
IDLE_WAIT_SECONDS = QUIET_WAIT_MS_MAX / 1000
MIB = 1024 * 1024


class Size(NamedTuple):
    nodes: int
    topics: int
    partitions: int
    replicas: int

    @property
    def all_partitions(self) -> int:
        return self.topics * self.partitions

    def placed(self, number: int) -> tuple[int, ...]:
        return tuple((number + step) % self.nodes for step in range(self.replicas))


def build(size: Size) -> Image:
    """Every node leads and follows as many partitions as every other."""
    image = Image()
    for node in range(size.nodes):
        life = Life(boot_id=f"{node:032x}", folder_id=f"{node:032x}")
        image.apply(RegisterNode(node=node, incarnation=node + 1, life=life))
    for number in range(size.topics):
        name, topic_id = f"topic-{number:06}", f"{number:032x}"
        image.apply(
            CreateTopic(
                topic=name,
                topic_id=topic_id,
                partitions=size.partitions,
                settings=TopicSettings(),
                created_ms=1_700_000_000_000,
                replicas=("0",),
                min_in_sync=2,
                placement=tuple(size.placed(number + partition) for partition in range(size.partitions)),
            )
        )
        holders = sorted({node for each in image.topics[name].assignments for node in each.replicas})
        for node in holders:
            image.apply(FolderMade(topic=name, topic_id=topic_id, node_id=str(node), partitions=size.partitions))
    return image


def fail_over(image: Image, dead: int) -> Iterator[AssignPartition]:
    """What follows from a node's death, partition by partition: another leads, and the in-sync set is smaller."""
    nodes = image.cluster.nodes()
    nodes[dead] = msgspec.structs.replace(nodes[dead], is_fenced=True)
    for name, topic in image.topics.items():
        for number, each in enumerate(topic.assignments):
            if dead in each.replicas:
                yield AssignPartition(
                    topic=name,
                    partition=number,
                    leader_epoch=each.leader_epoch,
                    partition_epoch=each.partition_epoch,
                    after=fenced(each, dead, nodes, topic.min_in_sync),
                )


def entries_of(events: Sequence[Event]) -> list[bytes]:
    """As few entries as hold them."""
    size = len(_encoded(events))
    count = -(-size // int(ENTRY_BYTES_MAX * 0.95))
    step = -(-len(events) // count)
    made = [_encoded(events[at : at + step]) for at in range(0, len(events), step)]
    assert all(len(entry) <= ENTRY_BYTES_MAX for entry in made)
    return made


def _encoded(events: Sequence[Event]) -> bytes:
    return encode_entry(Entry(1, events), "0", "0" * 32, "0" * 64)


def best(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    """The least processor time of so many."""
    gc.collect()
    gc.disable()
    try:
        taken: list[tuple[float, T]] = []
        for _ in range(repeats):
            began = time.process_time()
            result = work()
            taken.append((time.process_time() - began, result))
    finally:
        gc.enable()
    return min(taken, key=lambda each: each[0])


def fetch_messages(partitions: int) -> tuple[FetchRequest, FetchResponse]:
    """Of one follower to one leader, about so many partitions; nothing new in any."""
    asked = [FetchRequestPartition(partition=n, current_leader_epoch=1, fetch_offset=1000) for n in range(partitions)]
    told = [FetchResponsePartition(partition_index=n, high_watermark=1000) for n in range(partitions)]
    return (
        FetchRequest(session_id=7, session_epoch=3, topics=[FetchRequestTopic(partitions=asked)] if asked else []),
        FetchResponse(session_id=7, responses=[FetchResponseTopic(partitions=told)] if told else []),
    )


def fetch_cost(partitions: int, repeats: int) -> float:
    """Processor seconds of both sides to write and read one question and its answer."""

    def exchange() -> None:
        for message in fetch_messages(partitions):
            parts: list[bytes] = []
            write_message(message, FETCH_VERSION, parts.append, flexible=True)
            read_message(type(message), FETCH_VERSION, b"".join(parts), 0, flexible=True)

    return best(exchange, repeats)[0]


class Row(NamedTuple):
    what: str
    figure: str
    how: str


def image_rows(size: Size, image: Image, repeats: int) -> Iterator[Row]:
    encoding, data = best(lambda: msgspec.json.encode(image, order="sorted"), repeats)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = msgspec.json.decode(data, type=Image)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del held
    decoding, _ = best(lambda: msgspec.json.decode(data, type=Image), repeats)
    pieces = -(-len(data) // PIECE_BYTES)
    yield Row("partitions, replicas on a node", f"{size.all_partitions:,}, {_per_node(size):,}", "computed")
    yield Row("image", f"{len(data) / MIB:.1f} MiB, {len(data) / size.all_partitions:.0f} B a partition", "encoded")
    yield Row("… in etcd", f"{pieces} pieces of 512 KiB, each a request", "computed")
    yield Row("… encoded, for a snapshot", f"{encoding:.2f} s, beside the loop", "measured")
    yield Row(
        "… decoded, at a start", f"{decoding:.2f} s; about {(after - before) / 1024:.0f} MiB of memory", "measured"
    )
    copying, _ = best(image.copy, repeats)
    yield Row("… copied, before a change is checked", f"{copying * 1e3:.1f} ms on the loop", "measured")
    changes = [
        ChangeLeader(topic=f"topic-{n % size.topics:06}", partition=n % size.partitions, leader_id="", leader_epoch=2)
        for n in range(SNAPSHOT_EVERY)
    ]
    copy = image.copy()
    applying, _ = best(lambda: _apply(copy, changes), 1)
    yield Row(f"{SNAPSHOT_EVERY:,} events after the image, applied", f"{applying:.2f} s", "measured")


def _per_node(size: Size) -> int:
    return size.all_partitions * size.replicas // size.nodes


def _apply(image: Image, events: Sequence[Event]) -> None:
    for event in events:
        image.apply(event)


def fail_over_rows(size: Size, image: Image, repeats: int) -> Iterator[Row]:
    deciding, events = best(lambda: list(fail_over(image, 0)), repeats)
    led = sum(event.after.leader_epoch > event.leader_epoch for event in events)
    encoding, entries = best(lambda: entries_of(events), repeats)
    checking, _ = best(lambda: image.check_all(events), 1)
    copy = image.copy()
    applying, _ = best(lambda: _apply(copy, events), 1)
    total = sum(map(len, entries))
    yield Row("one node dies", f"{led:,} leaders, {len(events):,} in-sync sets: {len(events):,} events", "counted")
    yield Row(
        "… entries",
        f"{len(entries)}, {total / MIB:.2f} MiB, {total / len(events):.0f} B a partition",
        "encoded",
    )
    fits = int(ENTRY_BYTES_MAX / (total / len(events)))
    yield Row("… one entry is enough for", f"{fits:,} partitions on a node", "1 MiB by the bytes of one")
    yield Row(
        "… for the one who proposes",
        f"{deciding + encoding + checking:.2f} s (decide {deciding:.2f}, check {checking:.2f}, encode {encoding:.2f})",
        "measured",
    )
    yield Row("… for each node that applies it", f"{applying:.2f} s on its loop", "measured")
    packing, packed = best(lambda: sum(len(zlib.compress(entry, 1)) for entry in entries), repeats)
    yield Row("… if entries were compressed", f"{packed / MIB:.2f} MiB, {packing:.3f} s", "zlib, level 1; they are not")
    sent = total * 4 / 3 * size.nodes
    yield Row("… sent by etcd to all watches", f"{sent / MIB:.0f} MiB (base64)", f"{size.nodes} times 4/3 of it")


def etcd_rows(size: Size, image: Image) -> Iterator[Row]:
    image_bytes = len(msgspec.json.encode(image))
    events_bytes = sum(map(len, entries_of(list(fail_over(image, 0)))))
    # Two images, and what a third leaves until the next compaction; the entries between them.
    kept = (IMAGES_KEPT + 1) * image_bytes + IMAGES_KEPT * SNAPSHOT_EVERY * 250 + events_bytes
    ticks = size.nodes / TICK_SECONDS
    history = ticks * COMPACT_TICKS * TICK_SECONDS * 2 * 150
    held = kept + history
    yield Row(
        "etcd's database",
        f"{held / MIB:.0f} MiB, {100 * held / QUOTA_BYTES:.0f} % of its quota of 2 GiB",
        "three images, entries of two snapshots, ticks of ten minutes",
    )
    fits = int(QUOTA_BYTES / (IMAGES_KEPT + 1) / (image_bytes / size.all_partitions))
    yield Row("… its quota is reached at", f"{fits:,} partitions", "three images")
    yield Row("… without compaction, ticks alone", f"{ticks * 86400 * 150 / MIB:.0f} MiB a day", "150 B each")
    renewals = size.nodes * RENEWALS / LEASE_SECONDS
    yield Row(
        "etcd's calls, nothing happening",
        f"{ticks:.0f} writes, {renewals:.0f} renewals, {renewals:.0f} reads a second",
        "ticks every 2 s, leases every second",
    )
    yield Row("etcd's watches", f"{size.nodes}; {ticks:.0f} messages a second", "each node sees its own tick")


def fetch_rows(size: Size, repeats: int) -> Iterator[Row]:
    leaders = size.nodes - 1
    followed = _per_node(size) - size.all_partitions // size.nodes
    each = -(-followed // leaders)
    empty, some = fetch_cost(0, repeats * 20), fetch_cost(1000, repeats)
    per_partition = (some - empty) / 1000
    rate = leaders / IDLE_WAIT_SECONDS
    yield Row("a node follows", f"{followed:,} partitions of {leaders} leaders, {each} of each", "computed")
    yield Row(
        "one fetch, both sides' codec",
        f"{empty * 1e6:.0f} µs, and {per_partition * 1e6:.1f} µs a partition named",
        "measured",
    )
    yield Row(
        "a node's fetches, all idle, with sessions",
        f"{rate:.0f} a second: {100 * rate * empty:.1f} % of a core",
        f"each waits {IDLE_WAIT_SECONDS} s",
    )
    without = rate * (empty + each * per_partition)
    yield Row("… without sessions", f"{100 * without:.1f} % of a core", "every partition named each time")
    busy = 1.0 / per_partition
    yield Row("… a core full of changes", f"{busy:,.0f} partitions that moved, a second", "1 s by the cost of one")


def rows(size: Size, repeats: int) -> Iterator[Row]:
    image = build(size)
    yield from image_rows(size, image, repeats)
    yield from fail_over_rows(size, image, repeats)
    yield from etcd_rows(size, image)
    yield from fetch_rows(size, repeats)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in Size(100, 2_000, 100, 3)._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repeats", type=int, default=3)
    given = vars(parser.parse_args())
    repeats = given.pop("repeats")
    size = Size(**given)
    print(f"{size.nodes} nodes, {size.topics:,} topics of {size.partitions} partitions, {size.replicas} replicas\n")
    print("| what | figure | how |\n|---|---|---|")
    for row in rows(size, repeats):
        print(f"| {row.what} | {row.figure} | {row.how} |", flush=True)


if __name__ == "__main__":
    main()
