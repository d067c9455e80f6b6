"""How `make bench` tells what it found: rounds within a budget, ratios beside those of the run that is kept."""

import contextlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
from benchmarks.comparison import Asked, Question, Row, Run, Sample, answered, changes, load_run, save_run, table
from benchmarks.peers.rabbitmq import StreamFrames
from benchmarks.suite import ROUNDS_MIN, Group, measured

MORE = Question("pings", "an echo", 0.6, "/s")
LESS = Question("one produce, p50", "Redis", 1.5, "µs", less_is_better=True)


def row(question: Question, *ratios: float) -> Row:
    return answered(question, [Sample(ratio * 10, 10, cpu_us=2.0) for ratio in ratios])


def run(*rows: Row) -> Run:
    return Run(2, 0.5, list(rows))


def test_a_ratio_is_one_of_neighbours() -> None:
    """Whatever the machine did meanwhile has met both sides of a round."""
    found = answered(MORE, [Sample(10, 20), Sample(100, 200), Sample(3, 6)])
    assert found.ratio is not None
    assert (found.ratio.low, found.ratio.median, found.ratio.high) == (0.5, 0.5, 0.5)
    assert (found.rounds, found.ours, found.theirs, found.cpu_us) == (3, 10, 20, None)


@pytest.mark.parametrize(("question", "worse", "better"), [(MORE, 0.4, 0.8), (LESS, 0.8, 0.4)])
def test_what_moved_since_the_kept_run_is_told(question: Question, worse: float, better: float) -> None:
    kept = run(row(question, 0.59, 0.6, 0.61))
    assert changes(run(row(question, 0.6, 0.62, 0.64)), kept) == {}, "a little"
    assert changes(run(row(question, worse, worse, 0.6)), kept) == {}, "the spreads are not apart"
    slower = changes(run(row(question, worse, worse)), kept)[question.what]
    assert slower == f"SLOWER: 0.60 → {worse:.2f}"
    assert changes(run(row(question, better, better)), kept)[question.what].startswith("faster: ")
    assert changes(run(row(question, worse)), None) == {}
    assert changes(run(row(question, worse)), run(Row(question, missing="not installed"))) == {}


def test_the_table_says_what_was_missed_and_what_was_not_measured() -> None:
    rows = row(MORE, 0.5), row(LESS, 1.2), Row(Question("fetch", "RabbitMQ", 1.2, "/s"), missing="not installed")
    text = table(run(*rows), run(row(MORE, 0.7)))
    told = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| ")}
    assert "0.50 (0.50 to 0.50) | ≥ 0.6: missed | SLOWER: 0.70 → 0.50 |" in told["| pings"]
    assert "| 2.00 µs | 1.20 (1.20 to 1.20) | ≤ 1.5 |" in told["| one produce, p50"]
    assert "not measured: not installed" in told["| fetch"]


def test_a_run_is_kept_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    assert load_run(path) is None
    whole = run(row(MORE, 0.5), Row(LESS, missing="not installed"))
    save_run(whole, path)
    assert load_run(path) == whole
    assert msgspec.json.decode(path.read_bytes())["rows"][0]["question"]["what"] == "pings"


def test_rounds_go_on_until_the_share_of_the_budget_is_used() -> None:
    asked: list[str] = []
    closed = []

    @contextlib.contextmanager
    def opened() -> Iterator[Asked]:
        def work() -> Sample:
            asked.append("x")
            return Sample(1, 2)

        yield [(MORE, work), (LESS, work)]
        closed.append(True)

    clock = count()
    rows = measured(Group("both", opened), 7, clock=lambda: float(next(clock)))
    assert [each.rounds for each in rows] == [len(asked) // 2] * 2
    assert rows[0].rounds > ROUNDS_MIN
    assert [each.rounds for each in measured(Group("both", opened), 0)] == [ROUNDS_MIN] * 2
    assert closed == [True, True]


def test_a_group_that_fails_leaves_the_others_their_figures() -> None:
    @contextlib.contextmanager
    def opened() -> Iterator[Asked]:
        def work() -> Sample:
            raise TimeoutError("timed out")

        yield [(MORE, work)]

    (only,) = measured(Group("hostile", opened), 1)
    assert (only.question.what, only.ratio, only.missing) == ("hostile", None, "it failed: timed out")


def test_a_peer_that_is_not_installed_is_said_so() -> None:
    (only,) = measured(Group("keys", contextlib.nullcontext, "no-such-server"), 1)  # type: ignore[arg-type]
    assert only.missing == "no-such-server is not installed (Debian: apt-get install no-such-server)"


CONFIRM = bytes.fromhex("00000019 0003 0001 07 00000002 0000000000000001 0000000000000002")
"""PublishConfirm of two numbers, as RabbitMQ's stream protocol reference draws it."""
DELIVER = bytes.fromhex("00000018 0008 0001 00 50 00 0003 0000012c 0000000000000000 000000")
"""The beginning of a Deliver: three entries with 300 records."""
HEARTBEAT, WELL = bytes.fromhex("00000004 0017 0001"), bytes.fromhex("0000000a 8007 0001 00000000 0001")


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 17, 1000])
def test_frames_of_a_stream_are_counted_however_they_are_cut(step: int) -> None:
    counter, data = StreamFrames(), WELL + CONFIRM + HEARTBEAT + DELIVER + CONFIRM
    counts = [counter.feed(memoryview(data[at : at + step])) for at in range(0, len(data), step)]
    assert sum(counts) == 2 + 300 + 2


def test_a_stream_that_refuses_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="refuses"):
        StreamFrames().feed(memoryview(bytes.fromhex("0000000a 8007 0001 00000000 0002")))
