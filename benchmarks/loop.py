"""How long the largest request of every operation holds up everybody else: `make bench-loop`.

Knows: the requests of the walk in `tests/adapters/test_loop.py`, and a node whose turns are timed. The figures are processor
time of the longest turn of its loop, beside the aim; and what the node grew by beyond the frame.
"""

import argparse
import tempfile
from collections.abc import Iterable, Iterator

from tests.adapters.kafka.largest import older as older_rows
from tests.adapters.largest import Large, largest, older, prepare
from tests.adapters.loop_turns import MeasuredNode

from braidlog.wire.dialect import dialects

AIM_MS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dialects", nargs="*", default=list(dialects()))
    parser.add_argument("--older", action="store_true", help="Kafka's APIs in all their older versions instead")
    parser.add_argument("--pings", action="store_true", help="a million pings in one pipeline instead")
    asked = parser.parse_args()
    over = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        MeasuredNode(folder, "--set", "listeners.kafka.auto_create=false") as node,
    ):
        prepare(node)
        for each in _pings() if asked.pings else older(older_rows()) if asked.older else _newest(asked.dialects):
            cost = node.cost_of(each.dialect, each.frame, answer_bytes_max=each.answer_bytes_max)
            turn_ms = cost.turn_seconds * 1000
            over += turn_ms > AIM_MS
            print(
                f"{each.dialect:8}{each.operation:30}{each.what:42}{len(each.frame) >> 10:7} KiB"
                f"{turn_ms:9.1f} ms{' ' if turn_ms <= AIM_MS else '!'}{cost.grown_bytes >> 20:6} MiB"
            )
    print(f"{over} of them over the aim of {AIM_MS} ms")


def _pings() -> Iterator[Large]:
    return (each._replace(frame=each.frame * 1_000_000) for each in largest("flux") if each.operation == "PING")


def _newest(names: Iterable[str]) -> Iterator[Large]:
    for dialect in names:
        yield from largest(dialect)


if __name__ == "__main__":
    main()
