"""What one run of the benchmarks found, as JSON and as a table, beside the run that is kept in the repository.

Knows: ratios, spreads, what was wanted, what is kept of a run. Refuses to know: how anything is measured, and absolute figures of
another run: those belong to a machine and its day. Ratios are of neighbours in time, ours to theirs.
Invariant: what is kept was measured on a quiet machine; groups that were not asked, or could not answer, stay as they were kept.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.measure import likely, spread

TOLERANCE: Final = 0.1
"""A median that is worse by less is the machine's doing; a larger one counts if it is certain enough, too: `likely`."""
BUSY_MAX: Final = 0.1
"""Of a quiet machine's time."""


class Sample(msgspec.Struct, frozen=True):
    """One round: ours and theirs, one after the other; and what ours cost the server, in µs of processor time, if it is told."""

    ours: float
    theirs: float
    cpu_us: float | None = None


class Question(msgspec.Struct, frozen=True):
    """What is asked of both."""

    what: str
    peer: str
    wanted: float
    unit: str
    less_is_better: bool = False


Round = Callable[[], Sample]
Asked = list[tuple[Question, Round]]
"""Questions that share servers, and how each is asked once."""


class Range(msgspec.Struct, frozen=True):
    """Of all rounds; and between which of them the median is likely to be."""

    low: float
    median: float
    high: float
    likely_low: float
    likely_high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class Row(msgspec.Struct, frozen=True):
    """A question and its answer; `missing` says why there is none. `busy` is the share of the machine's time that others had just
    before."""

    question: Question
    rounds: int = 0
    ratio: Range | None = None
    ours: float | None = None
    theirs: float | None = None
    cpu_us: float | None = None
    missing: str = ""
    group: str = ""
    busy: float = 0.0

    @property
    def is_kept(self) -> bool:
        """Whether later runs may be compared with it."""
        return self.ratio is not None and self.busy <= BUSY_MAX


class Run(msgspec.Struct, frozen=True):
    """One run, or what is kept of several."""

    cores: int
    load: float
    """Of the machine before it began: with more than a little, the figures tell of that as well."""
    rows: list[Row]


def answered(question: Question, samples: Sequence[Sample]) -> Row:
    ours, theirs = [each.ours for each in samples], [each.theirs for each in samples]
    costs = [each.cpu_us for each in samples if each.cpu_us is not None]
    found = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Row(
        question,
        len(samples),
        Range(*spread(found), *likely(found)),
        spread(ours).median,
        spread(theirs).median,
        spread(costs).median if costs else None,
    )


def change(now: Row, kept: Row | None) -> str:
    """How a ratio moved since the run that is kept: nothing, "slower" or "faster" with both."""
    if now.ratio is None or kept is None or kept.ratio is None:
        return ""
    moved = now.ratio.median / kept.ratio.median if kept.ratio.median else 1.0
    apart = now.ratio.likely_low > kept.ratio.likely_high or now.ratio.likely_high < kept.ratio.likely_low
    if abs(moved - 1) < TOLERANCE or not apart:
        return ""
    is_better = (moved > 1) != now.question.less_is_better
    return f"{'faster' if is_better else 'SLOWER'}: {kept.ratio.median:.2f} → {now.ratio.median:.2f}"


def changes(now: Run, kept: Run | None) -> dict[str, str]:
    """By question, of those that moved."""
    before = {(row.question.what, row.question.peer): row for row in kept.rows} if kept is not None else {}
    found = {row.question.what: change(row, before.get((row.question.what, row.question.peer))) for row in now.rows}
    return {what: moved for what, moved in found.items() if moved}


def merged(now: Run, kept: Run | None, groups: Sequence[str]) -> Run:
    """What is kept from now on: of each of the groups there are its newest rows, all of one run; nothing of other machines."""
    spoiled = {row.group for row in now.rows if not row.is_kept}
    newest = [row for row in now.rows if row.group in groups and row.group not in spoiled]
    replaced = {row.group for row in newest}
    before = Run(now.cores, 0.0, []) if kept is None or kept.cores != now.cores else kept
    older = [row for row in before.rows if row.group in groups and row.group not in replaced]
    rows = sorted((*newest, *older), key=lambda row: groups.index(row.group))
    return Run(now.cores, max(now.load, before.load), rows)


def table(now: Run, kept: Run | None) -> str:
    """The run in Markdown."""
    moved = changes(now, kept)
    lines = [
        f"{now.cores} cores, load {now.load:.1f} before; medians, with the spread. A ratio is ours to theirs, of neighbours.",
        "",
        "| what | to whom | ours | theirs | server's time each | ratio | wanted | since the kept run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in now.rows:
        question = row.question
        sign = "≤" if question.less_is_better else "≥"
        wanted = f"{sign} {question.wanted:g}"
        if row.ratio is None or row.ours is None or row.theirs is None:
            lines.append(f"| {question.what} | {question.peer} | | | | not measured: {row.missing} | {wanted} | |")
            continue
        median = row.ratio.median
        holds = median <= question.wanted if question.less_is_better else median >= question.wanted
        cost = "" if row.cpu_us is None else f"{row.cpu_us:.2f} µs"
        figures = f"{_shown(row.ours)} {question.unit} | {_shown(row.theirs)} {question.unit} | {cost}"
        verdict = wanted if holds else f"{wanted}: missed"
        lines.append(
            f"| {question.what} | {question.peer} | {figures} | {row.ratio} | {verdict} | {moved.get(question.what, '')} |"
        )
    return "\n".join(lines) + "\n"


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"


def load_run(path: Path) -> Run | None:
    """The run in a file; None if there is none."""
    return msgspec.json.decode(path.read_bytes(), type=Run) if path.exists() else None


def save_run(run: Run, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
