"""How stages are started and attended, with queries that are none."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from braidlog.spark.pipeline import stage_runner
from braidlog.spark.pipeline.stage_runner import START_ATTEMPTS_MAX, Runner, StageFailed, Stopped, StopRequest

NOT_UP = "org.apache.spark.SparkException: Python worker failed to connect back."


class Query:
    """A stream that runs until it is stopped, or has ended with `error`."""

    lastProgress = None  # noqa: N815 - Spark's name
    runId = "run"  # noqa: N815 - Spark's name
    status: dict[str, str] = {"message": "Processing"}  # noqa: RUF012 - as Spark has it

    def __init__(self, error: str = "") -> None:
        self.isActive = not error
        self._error = error

    def exception(self) -> PySparkException | None:
        return PySparkException(self._error) if self._error else None

    def stop(self) -> None:
        self.isActive = False


class Stages(Runner):
    """`late` is started in vain so many times; the others run."""

    def __init__(self, vain: int, *, raises: bool, stop: StopRequest) -> None:
        self._reporter = None
        self._vain = vain
        self._raises = raises
        self._stop = stop
        self.starts: list[str] = []
        self.working = Query()

    def _start(self, stage: Any, *, once: bool = False) -> Any:
        self.starts.append(stage.name)
        if stage.name == "working":
            return self.working
        assert self.working.isActive, "what works is not ended"
        if self.starts.count("late") > self._vain:
            self._stop.set()
            return Query()
        if once and self.starts.count("late") == START_ATTEMPTS_MAX:
            self.working.isActive = False  # it has read all there is
        if self._raises:
            raise PySparkException(NOT_UP)
        return Query(NOT_UP)


STAGES = cast("Any", [SimpleNamespace(name="working"), SimpleNamespace(name="late")])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_runner, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(stage_runner, "PAUSE_SECONDS", 1e-9)


@pytest.mark.parametrize("raises", [False, True])
def test_a_stage_that_does_not_start_is_started_again_beside_the_others(
    *, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stop = StopRequest()
    stages = Stages(2 * START_ATTEMPTS_MAX, raises=raises, stop=stop)
    with pytest.raises(Stopped):
        stages._attend(STAGES, stop)
    assert stages.starts == ["working"] + ["late"] * (2 * START_ATTEMPTS_MAX + 1)
    said = [each for each in caplog.messages if "restarting stage late" in each]
    pauses = [f"pause={1e-9 * 2**number:g} s" for number in range(2 * START_ATTEMPTS_MAX)]
    assert [each.rpartition(", ")[2] for each in said] == pauses


@pytest.mark.parametrize("raises", [False, True])
def test_a_run_that_ends_fails_when_the_others_have_ended(*, raises: bool) -> None:
    stop = StopRequest()
    stages = Stages(START_ATTEMPTS_MAX, raises=raises, stop=stop)
    with pytest.raises(StageFailed, match="stage late failed: its Python process did not start"):
        stages._attend(STAGES, stop, once=True)
    assert stages.starts == ["working"] + ["late"] * START_ATTEMPTS_MAX


def test_any_other_failure_ends_all() -> None:
    stages = Stages(0, raises=False, stop=StopRequest())
    stages._start = lambda stage, *, once=False: stages.working if stage.name == "working" else Query("KeyError: 'x'")  # type: ignore[method-assign]
    with pytest.raises(StageFailed, match="stage late failed: KeyError: 'x'"):
        stages._attend(STAGES, StopRequest())
    assert not stages.working.isActive
