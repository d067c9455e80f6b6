"""The record kernel, compiled and plain: records a second, on one core.

    .venv/bin/python benchmarks/kernel.py [--repeats 15] [--record-bytes 100] [--batch-records 1000]

Prints the median of the repeats with their range. Each repeat works through about `--records` records in
batches, as a client or a Spark reader does: `encode` makes the records section, `to tuples` and `to arrow
buffers` read it, `to arrow record batches` reads whole batches with checksum into a pyarrow.RecordBatch. The machine's noise
is in the range; compare medians.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

from braidlog.codec.batch import kernel, records
from braidlog.codec.columns import records_to_arrow
from braidlog.codec.columns.arrow import COLUMN_NAMES, PieceBuilder, PieceLimits

BOUND = 1 << 28


def twin_of(records_module: ModuleType, columns_module: ModuleType) -> SimpleNamespace:
    return SimpleNamespace(**vars(records_module) | {"Columns": columns_module.Columns})


def load_plain(path: str) -> ModuleType:
    """A compiled module's source, run as it is under another name."""
    source = Path(records.__file__).parents[2] / f"{path}.py"
    loader = SourceFileLoader(f"braidlog_{source.stem}_plain", str(source))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    assert not module.COMPILED
    return module


def rate(work: Callable[[], object], count: int, repeats: int) -> str:
    work()
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - start) / 1e6)
    return f"{statistics.median(rates):8.2f}  ({min(rates):.2f}..{max(rates):.2f})"


def batches_of(options: argparse.Namespace) -> list[list[bytes]]:
    """Values that all differ: equal objects would stay in the nearest cache and flatter the copy."""
    size, count = options.batch_records, max(1, options.records // options.batch_records)
    return [[os.urandom(options.record_bytes) for _ in range(size)] for _ in range(count)]


def drain(results: Iterable[object]) -> None:
    deque(results, maxlen=0)


def measure(twin: SimpleNamespace, name: str, options: argparse.Namespace) -> None:
    size: int = options.batch_records
    values = batches_of(options)
    keys = [b"%08d" % number for number in range(size)]
    stamps = [1_700_000_000_000 + number for number in range(size)]
    sections = [twin.encode_records(batch, None, None, None, 0) for batch in values]
    keyed = [twin.encode_records(batch, keys, stamps, None, stamps[0]) for batch in values]

    def grow(source: list[bytes]) -> None:
        built = twin.Columns()
        for index, section in enumerate(source):
            built.append(section, size, index * size, size - 1, 0)
        built.finish()

    # Each result is dropped before the next is made, as a batch is that was sent: kept, each would be written
    # to fresh pages, and the kernel's clearing of those would be measured.
    works: dict[str, Callable[[], object]] = {
        "encode": lambda: drain(twin.encode_records(batch, None, None, None, 0) for batch in values),
        "encode, with key and timestamp": lambda: drain(
            twin.encode_records(batch, keys, stamps, None, stamps[0]) for batch in values
        ),
        "decode to tuples": lambda: drain(twin.decode_records(s, size, 0, size - 1, 0) for s in sections),
        "decode to arrow buffers": lambda: grow(sections),
        "decode to arrow, with key and timestamp": lambda: grow(keyed),
        "check": lambda: drain(twin.check_records(s, size, size - 1, 0, dense=True) for s in sections),
    }
    for label, work in works.items():
        print(f"{name:9}{label:42}{rate(work, size * len(values), options.repeats)}", flush=True)


def measure_batches(options: argparse.Namespace) -> None:
    size: int = options.batch_records
    values = batches_of(options)
    count = size * len(values)
    log = b"".join(
        records.encode_batch(batch, base_timestamp=0, base_offset=index * size) for index, batch in enumerate(values)
    )

    def encode() -> None:
        for batch in values:
            records.encode_batch(batch, base_timestamp=0)

    def arrow() -> None:
        pieces = PieceBuilder(COLUMN_NAMES, PieceLimits(BOUND, BOUND), end_offset=count, decompressed_bytes_max=BOUND)
        drain(pieces.add(log, 0))
        drain(pieces.flush())

    print(f"{'batch':9}{'encode_batch':42}{rate(encode, count, options.repeats)}")
    print(f"{'batch':9}{'to arrow record batches':42}{rate(arrow, count, options.repeats)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="records a second of the record kernel, in millions")
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--batch-records", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    print(
        f"{options.record_bytes} B records, {options.batch_records} a batch, {options.repeats} repeats: "
        "million records/s, median (min..max)"
    )
    if kernel.COMPILED:
        measure(twin_of(kernel, records_to_arrow), "compiled", options)
    else:
        print("compiled: not built here")
    measure(twin_of(load_plain("codec/batch/kernel"), load_plain("codec/columns/records_to_arrow")), "plain", options)
    measure_batches(options)


if __name__ == "__main__":
    main()
