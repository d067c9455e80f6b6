"""How `make bench` tells what it found: rounds within a budget, ratios beside those of the run that is kept."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest
from benchmarks import suite
from benchmarks.comparison import (
    Asked,
    Question,
    Row,
    Run,
    Sample,
    answered,
    changes,
    load_run,
    merged,
    save_run,
    table,
)
from benchmarks.measure import busy_share, likely
from benchmarks.peers.rabbitmq import StreamFrames
from benchmarks.suite import LOOKS, ROUNDS_MIN, Group, measured, others_share

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


def test_rounds_that_lie_far_out_do_not_hide_that_a_path_became_slower() -> None:
    kept = run(row(MORE, *[0.6] * 18, 0.2, 0.9))
    assert changes(run(row(MORE, *[0.4] * 18, 0.7, 0.1)), kept)["pings"] == "SLOWER: 0.60 → 0.40"
    assert changes(run(row(MORE, *[0.4] * 11, *[0.6] * 9)), kept) == {}, "either could be the median"


def test_between_which_values_a_median_is_likely_to_be() -> None:
    """As tables of the sign test have it: of 20, the 6th and the 15th."""
    assert likely(range(20, 0, -1)) == (6, 15)
    assert likely(range(1, 10)) == (2, 8)
    for few in range(1, 9):
        assert likely(range(1, few + 1)) == (1, few)


def test_an_answer_is_compared_with_that_of_the_same_peer() -> None:
    other = msgspec.structs.replace(MORE, peer="another echo")
    assert changes(run(row(other, 0.4)), run(row(MORE, 0.6))) == {}


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


def of(group: str, *ratios: float, what: str = "", busy: float = 0.0) -> Row:
    question = msgspec.structs.replace(MORE, what=what or group)
    return msgspec.structs.replace(row(question, *ratios), group=group, busy=busy)


def test_a_run_of_some_groups_leaves_what_is_kept_of_the_others() -> None:
    kept = run(of("a", 0.1, what="an old question"), of("b", 0.2), of("c", 0.3), of("gone", 0.4))
    failed = Row(Question("b", "", 0.0, ""), missing="it failed", group="b")
    elsewhere = Row(Question("by another command", "", 0.0, ""), missing="by another command")
    found = merged(run(failed, of("c", 0.35, busy=0.5), of("a", 0.15), elsewhere), kept, ["a", "b", "c"])
    assert [(each.group, each.question.what, each.ours) for each in found.rows] == [
        ("a", "a", 1.5),
        ("b", "b", 2.0),
        ("c", "c", 3.0),
    ], "of a group that was asked nothing old stays; one that failed, or was measured beside others, is as it was"
    assert merged(run(of("a", 0.15)), msgspec.structs.replace(kept, cores=8), ["a", "b"]).rows == [of("a", 0.15)]
    assert merged(run(of("a", 0.15)), None, ["a", "b"]).rows == [of("a", 0.15)]


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, dict[str, float]]]:
    """bench(arguments, a=…, b=…, busy=…) → what `make bench` says with two groups of such ratios, and what is kept then."""

    def ask(arguments: str, busy: float = 0.0, **ratios: float) -> tuple[str, dict[str, float]]:
        def opened(name: str) -> AbstractContextManager[Asked]:
            question = msgspec.structs.replace(MORE, what=f"pings of {name}")
            return contextlib.nullcontext([(question, lambda: Sample(ratios[name] * 10, 10))])

        monkeypatch.setattr(suite, "GROUPS", tuple(Group(name, partial(opened, name)) for name in "ab"))
        monkeypatch.setattr(suite, "KEPT", tmp_path / "kept.json")
        monkeypatch.chdir(tmp_path)
        suite.main(["--minutes", "0", *arguments.split()], others=lambda: busy)
        kept = load_run(tmp_path / "kept.json")
        shown = {each.question.what: each.ours or 0.0 for each in kept.rows} if kept is not None else {}
        return capsys.readouterr().out, shown

    return ask


def test_runs_are_kept_and_compared_with(bench: Callable[..., tuple[str, dict[str, float]]]) -> None:
    told, kept = bench("", a=0.6, b=0.7)
    assert "no run is kept to compare with" in told
    assert kept == {}
    told, kept = bench("--keep", a=0.6, b=0.7)
    assert "kept: a, b\n" in told
    assert kept == {"pings of a": 6.0, "pings of b": 7.0}
    told, kept = bench("b", b=0.5)
    assert "pings of b: SLOWER: 0.70 → 0.50" in told
    assert "pings of a" not in told
    assert kept == {"pings of a": 6.0, "pings of b": 7.0}
    told, kept = bench("--keep b", b=0.5)
    assert "SLOWER" in told, "also who keeps it is told"
    assert kept == {"pings of a": 6.0, "pings of b": 5.0}
    told, _ = bench("", a=0.6, b=0.5)
    assert "SLOWER" not in told


def test_nothing_is_kept_of_a_machine_that_others_use(bench: Callable[..., tuple[str, dict[str, float]]]) -> None:
    bench("--keep", a=0.6, b=0.7)
    with pytest.raises(SystemExit, match="others have 50% of the machine: end them"):
        bench("--keep", busy=0.5, a=0.3, b=0.3)
    _, kept = bench("", busy=0.5, a=0.6, b=0.7)
    assert kept == {"pings of a": 6.0, "pings of b": 7.0}


def test_what_was_measured_while_others_came_is_not_kept(tmp_path: Path) -> None:
    told = suite.keep(run(of("pings", 0.6), of("raw", 0.7, busy=0.42)), None, tmp_path / "kept.json")
    assert told == ["kept: pings", "not kept: raw: others had 42% of the machine"]
    kept = load_run(tmp_path / "kept.json")
    assert kept is not None
    assert [each.group for each in kept.rows] == ["pings"]
    assert suite.keep(run(of("raw", 0.7, busy=0.42)), None, tmp_path / "none.json")[0] == "kept: nothing"
    assert not (tmp_path / "none.json").exists()


def test_some_groups_of_another_machine_are_not_put_beside_the_kept_ones() -> None:
    here, elsewhere = os.cpu_count() or 1, Run(1000, 0.0, [])
    some, everything = suite.GROUPS[:1], suite.GROUPS
    assert suite.refusal(some, elsewhere, 0.0) == (
        f"the kept run is of 1000 cores and this machine has {here}: keep all groups at once, not some"
    )
    assert suite.refusal(everything, elsewhere, 0.0) is None
    assert suite.refusal(some, Run(here, 0.0, []), 0.0) is None


def test_how_busy_others_are() -> None:
    """Two readings of /proc/stat: user, nice, system, idle, waiting for disks, interrupts (2), stolen, guests (2)."""
    readings = iter(["cpu  10 0 10 100 0 0 0 0 5 0\ncpu0 1", "cpu  20 5 15 160 10 0 0 10 15 0\ncpu0 1"])
    assert busy_share(0.0, lambda: next(readings)) == pytest.approx(0.4)
    assert 0.0 <= busy_share(0.0) <= 1.0


def test_what_stopped_servers_leave_to_be_done_is_waited_for() -> None:
    looks = iter([0.9, 0.6, 0.05, 0.9])
    assert others_share(share=lambda _: next(looks)) == 0.05
    looks = iter([0.9, 0.4, *[0.8] * LOOKS])
    assert others_share(share=lambda _: next(looks)) == 0.4
    assert len(list(looks)) == 2


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
