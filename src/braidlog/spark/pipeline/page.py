"""Renders a wire log's report as one self-contained HTML page with plots and tables.

Every text of the log is escaped; the page loads no external resource. Does not handle: computing the numbers.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec
from jinja2 import Environment, StrictUndefined

WIDTH: Final = 640
HEIGHT: Final = 160


class Command(msgspec.Struct, frozen=True):
    """A row of the table."""

    name: str = msgspec.field(name="command")
    requests: int
    per_second: float
    bytes_in: int
    bytes_out: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    errors: int
    unanswered: int


class Bin(msgspec.Struct, frozen=True):
    """A point of the plots."""

    number: int = msgspec.field(name="bin")
    per_second: float
    p50_ms: float | None
    p99_ms: float | None


class Dialect(msgspec.Struct, frozen=True):
    name: str
    commands: tuple[Command, ...]
    bins: tuple[Bin, ...]


class Line(msgspec.Struct, frozen=True):
    """A line of a plot. `pieces` are SVG points; a missing value interrupts the line."""

    label: str
    pieces: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]


class Plot(msgspec.Struct, frozen=True):
    title: str
    top: str
    lines: tuple[Line, ...]


def plot(title: str, unit: str, count: int, series: dict[str, Sequence[float | None]]) -> Plot:
    """Build a plot with `count` points per line, from 0 to the greatest value."""
    top = max((value for values in series.values() for value in values if value is not None), default=0.0) or 1.0
    lines = tuple(_line(label, values, count, top) for label, values in series.items())
    return Plot(title, f"{number(top)} {unit}", lines)


def _line(label: str, values: Sequence[float | None], count: int, top: float) -> Line:
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            pieces.append([])
        else:
            x = WIDTH * (place + 0.5) / count
            pieces[-1].append((round(x, 1), round(HEIGHT * (1 - value / top), 1)))
    drawn = tuple(" ".join(f"{x},{y}" for x, y in piece) for piece in pieces if len(piece) > 1)
    return Line(label, drawn, tuple(piece[0] for piece in pieces if len(piece) == 1))


def number(value: float | None) -> str:
    """Format a number with three significant digits."""
    if value is None:
        return "-"
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _plots(dialect: Dialect, count: int) -> tuple[Plot, Plot]:
    at = {each.number: each for each in dialect.bins}
    points = [at.get(place) for place in range(count)]
    return (
        plot(
            "requests per second", "/s", count, {"requests": [point.per_second if point else 0.0 for point in points]}
        ),
        plot(
            "milliseconds to the answer",
            "ms",
            count,
            {
                "p50": [point.p50_ms if point else None for point in points],
                "p99": [point.p99_ms if point else None for point in points],
            },
        ),
    )


def page(title: str, first: str, last: str, dialects: Sequence[Dialect], count: int) -> str:
    """Render the page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    sections: list[dict[str, Any]] = [{"dialect": dialect, "plots": _plots(dialect, count)} for dialect in dialects]
    return template.render(
        title=title,
        first=first,
        last=last,
        sections=sections,
        width=WIDTH,
        height=HEIGHT,
        command_count=_count(dialects),
    )


def _count(dialects: Sequence[Dialect]) -> int:
    return sum(command.requests for dialect in dialects for command in dialect.commands)
