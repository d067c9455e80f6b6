"""Progress of Spark pipelines: rows read, written and dropped, lag and errors of each stage.

A stage's query is named `<pipeline>.<stage>`, and so is its topic. `braid pipeline status` shows the same reports for all
runs. At most `PIPELINES_MAX` pipelines are kept, the most recent ones, of `STAGES_MAX` stages and tables each, with
points of one hour, in memory only: values start with the console.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from braidlog.model.reporting.node_report import QueryProgress

PIPELINES_MAX: Final = 50
STAGES_MAX: Final = 100
POINTS_MAX: Final = 3600
POINT_MS: Final = 1000
DEAD_LETTERS: Final = ("dead-letters", "dead_letters")
_IDENTITY: Final = "@id"
"""Separator after a topic's name in a checkpoint; what follows is the topic's id, not an offset."""

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 150, 34, 50, 14


class Stage:
    """One query of a pipeline. Rows are those of the reported batches; `written` is None if Spark does not count them.
    `caught_up_ms`: when the stage last had no lag; all unread records are newer."""

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.state = "running"
        self.error: str | None = None
        self.batch: int | None = None
        self.rows = self.dead = self.late = 0
        self.written: int | None = None
        self.rows_per_second = 0.0
        self.lag: int | None = None
        self.caught_up_ms = self.heard_ms = now_ms
        self.reads: tuple[str, ...] = ()
        self.sink = ""

    @property
    def behind_seconds(self) -> float | None:
        """Return the upper bound of the lag in time, at the last report."""
        return None if self.lag is None else (self.heard_ms - self.caught_up_ms) / 1000

    def take(self, report: QueryProgress, now_ms: int) -> None:
        self.state, self.heard_ms = report.state, now_ms
        self.error = report.error or (self.error if report.state == "failed" else None)
        if report.state != "running":
            self.rows_per_second = 0.0
        if report.progress is not None:
            self._take_progress(report.progress, now_ms)

    def _take_progress(self, progress: Mapping[str, Any], now_ms: int) -> None:
        self.batch = _whole(progress.get("batchId"))
        self.rows += _whole(progress.get("numInputRows")) or 0
        rate = progress.get("processedRowsPerSecond")
        self.rows_per_second = float(rate) if isinstance(rate, int | float) else 0.0
        sink = _mapping(progress.get("sink"))
        self.sink = str(sink.get("description") or "")
        written = _whole(sink.get("numOutputRows"))
        if written is not None and written >= 0:
            self.written = (self.written or 0) + written
            self.dead += written if self.name in DEAD_LETTERS else 0
        for operator in _list(progress.get("stateOperators")):
            self.late += _whole(_mapping(operator).get("numRowsDroppedByWatermark")) or 0
        self.reads, self.lag = _sources(_list(progress.get("sources")))
        if self.lag == 0:
            self.caught_up_ms = now_ms


class Point(NamedTuple):
    t: float
    rows: float
    lag: int


class Pipeline:
    def __init__(self, name: str) -> None:
        self.name = name
        self.stages: dict[str, Stage] = {}
        self.tables: dict[str, str] = {}
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)

    def take(self, report: QueryProgress, now_ms: int) -> None:
        if report.tables:
            self.tables = dict(islice(report.tables.items(), STAGES_MAX))
        name = (report.name or report.query).removeprefix(f"{self.name}.")
        stage = self.stages.get(name)
        if stage is None:
            if len(self.stages) >= STAGES_MAX:
                return
            stage = self.stages[name] = Stage(name, now_ms)
        stage.take(report, now_ms)
        if not self._points or now_ms - self._points[-1].t * 1000 >= POINT_MS:
            self._points.append(self.point(now_ms))

    def point(self, now_ms: int) -> Point:
        """Return the current totals of all stages."""
        rows = sum(stage.rows_per_second for stage in self.stages.values())
        return Point(now_ms / 1000, rows, sum(stage.lag or 0 for stage in self.stages.values()))

    def points(self) -> list[dict[str, Any]]:
        return [each._asdict() for each in self._points]


class SparkPipelines:
    def __init__(self) -> None:
        self._pipelines: OrderedDict[str, Pipeline] = OrderedDict()

    def take(self, report: QueryProgress, now_ms: int) -> None:
        if not report.pipeline:
            return
        found = self._pipelines.pop(report.pipeline, None) or Pipeline(report.pipeline)
        self._pipelines[report.pipeline] = found
        found.take(report, now_ms)
        if len(self._pipelines) > PIPELINES_MAX:
            self._pipelines.popitem(last=False)

    def get(self, name: str) -> Pipeline | None:
        return self._pipelines.get(name)


# -- parsing Spark's reports ---------------------------------------------------------------------------------------------


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _sources(sources: list[Any]) -> tuple[tuple[str, ...], int | None]:
    """Return the source topics, and their lag in records; other sources have a description and no lag."""
    names: list[str] = []
    lag: int | None = None
    for source in map(_mapping, sources):
        end, latest = _mapping(source.get("endOffset")), _mapping(source.get("latestOffset"))
        topics = [name for name, parts in end.items() if isinstance(parts, dict) and not name.endswith(_IDENTITY)]
        names += topics or [str(source.get("description") or "")]
        for topic in topics:
            for number, offset in _mapping(latest.get(topic)).items():
                lag = (lag or 0) + max((_whole(offset) or 0) - (_whole(end[topic].get(number)) or 0), 0)
    return tuple(dict.fromkeys(name for name in names if name)), lag


# -- the graph -----------------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    x: int
    y: int
    kind: str
    name: str


class Graph(NamedTuple):
    """Boxes, and lines from (x, y) to (x, y)."""

    width: int
    height: int
    boxes: list[Box]
    lines: list[tuple[int, int, int, int]]


def graph(pipeline: Pipeline) -> Graph:
    """Lay out the data flow from left to right: topics into stages, and each stage into its topic if another stage reads it,
    else into its sink."""
    edges: list[tuple[tuple[str, str], tuple[str, str]]] = []
    read = {name for stage in pipeline.stages.values() for name in stage.reads}
    for stage in pipeline.stages.values():
        edges += [(("topic", name), ("stage", stage.name)) for name in stage.reads]
        own = f"{pipeline.name}.{stage.name}"
        if own in read:
            edges.append((("stage", stage.name), ("topic", own)))
        elif stage.sink:
            edges.append((("stage", stage.name), ("sink", stage.sink)))
    depth = dict.fromkeys([node for edge in edges for node in edge] + [("stage", name) for name in pipeline.stages], 0)
    for _ in depth:  # as many rounds as the longest path has; bounds cycles, too
        for source, target in edges:
            depth[target] = max(depth[target], min(depth[source] + 1, len(depth)))
    columns: dict[int, list[tuple[str, str]]] = {}
    for node, at in depth.items():
        columns.setdefault(at, []).append(node)
    places = {
        node: (x * (BOX_WIDTH + GAP_X), y * (BOX_HEIGHT + GAP_Y))
        for x, at in enumerate(sorted(columns))
        for y, node in enumerate(columns[at])
    }
    middle = BOX_HEIGHT // 2
    lines = [
        (places[source][0] + BOX_WIDTH, places[source][1] + middle, places[target][0], places[target][1] + middle)
        for source, target in edges
    ]
    boxes = [Box(*place, *node) for node, place in places.items()]
    width = max((box.x for box in boxes), default=0) + BOX_WIDTH
    return Graph(width, max((box.y for box in boxes), default=0) + BOX_HEIGHT, boxes, lines)
