"""The promise of the embedded log: everything a broker keeps, from a script. Batches, keys, headers, time, waiting, reopening.

python examples/embedded_tour.py [FOLDER]
"""

import sys
import tempfile
import threading
from itertools import islice

from braidlog import Compression, Log, NewRecord, Record


def tour(folder: str) -> None:
    with Log(folder) as log:
        orders = log.create_topic("orders", partitions=2)

        # Many records in one batch: all of them or none, compressed together.
        batch = [NewRecord(f"order {number}".encode() * 20) for number in range(100)]
        appended = orders.append_many(batch, compression=Compression.ZSTD)
        print(f"one batch: offsets {appended.base_offset} to {appended.last_offset}")

        # A key chooses the partition, the same one that Kafka's clients would choose; headers travel along.
        for customer in (b"ada", b"grace", b"ada"):
            orders.append(b"paid", key=customer, headers=[("currency", b"EUR")])
        for number in range(orders.partitions):
            paid = [record for record in orders.iterate(partition=number) if record.key is not None]
            print(f"partition {number}: {[(record.key, record.headers) for record in paid]}")

        # A reader that waits: it sees each record as soon as it is safe on the disk.
        events = log.create_topic("events")
        seen: list[Record] = []
        reader = threading.Thread(target=lambda: seen.extend(islice(events.follow(timeout=10), 3)))
        reader.start()
        for number in range(3):
            events.append(f"event {number}".encode(), timestamp_ms=1_000 * number)
        reader.join()
        print(f"followed: {[record.value for record in seen]}")

        # Where was the log at that time?
        print(f"first event at or after t = 1.5 s: offset {events.offset_at(1_500)}")

    # Closed and opened again: the same offsets, the same bytes, and the numbering goes on.
    with Log(folder) as log:
        events = log.topic("events")
        assert events.read() == seen
        print(f"after reopening, the next offset is {events.append(b'one more')}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        tour(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            tour(temporary + "/data")
