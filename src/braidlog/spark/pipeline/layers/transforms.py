"""Custom transforms: a file of SQL over the view `input`, or of Python with `transform(frame)`.

A Python file runs once per command and is not added to `sys.modules`, so that its definitions are sent to executors
by value. Does not handle: what a transform computes.
"""

from collections.abc import Callable
from importlib import util
from pathlib import Path

from pyspark.sql import DataFrame

from braidlog.spark.pipeline.config import refusal

VIEW = "input"


class Transform:
    """One transform file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._apply = _LOADERS[path.suffix](path)

    def __call__(self, frame: DataFrame) -> DataFrame:
        return self._apply(frame)


def load(folder: Path, name: str) -> Transform:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise refusal(f"{name} is not in the project's folder")
    if path.suffix not in _LOADERS:
        raise refusal(f"{name}: a transform must be a .sql or a .py file")
    if not path.is_file():
        raise refusal(f"{name} does not exist")
    return Transform(path)


def _sql(path: Path) -> Callable[[DataFrame], DataFrame]:
    statement = path.read_text(encoding="utf-8").strip().rstrip(";")

    def apply(frame: DataFrame) -> DataFrame:
        # A plan is resolved when it is created: the next transform may reuse the view's name.
        frame.createOrReplaceTempView(VIEW)
        return frame.sparkSession.sql(statement)

    return apply


def _python(path: Path) -> Callable[[DataFrame], DataFrame]:
    spec = util.spec_from_file_location(f"transform_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, "transform", None)
    if not callable(function):
        raise refusal(f"{path.name} has no function `transform(frame)`")

    def apply(frame: DataFrame) -> DataFrame:
        made = function(frame)
        if not isinstance(made, DataFrame):
            raise refusal(f"{path.name}: transform(frame) returned {type(made).__name__}, not a DataFrame")
        return made

    return apply


_LOADERS = {".sql": _sql, ".py": _python}
