"""Alerts: checks a pipeline's status against the limits in the section [alerts].

Does not handle: notifications: `braid pipeline status --check` exits with code 1.
"""

from datetime import UTC, datetime, timedelta

from braidlog.spark.pipeline.project import Project, seconds_of
from braidlog.spark.pipeline.status import Status


def alerts(project: Project, status: Status, now_ms: int) -> list[str]:
    """Return a sentence for each exceeded limit; empty if there is none."""
    limits = project.pipeline.alerts
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    said = []
    for stage in status.stages:
        if stage.lag is not None and stage.lag > limits.lag_records:
            said.append(f"{stage.stage} is {stage.lag} records behind; lag_records = {limits.lag_records}")
        # A stage that has read everything is silent because there are no new records.
        since = now - datetime.fromisoformat(stage.last) if stage.last and stage.lag else timedelta()
        if since.total_seconds() > seconds_of(limits.silent):
            said.append(f"{stage.stage} is behind and has done nothing since {stage.last}; silent = {limits.silent!r}")
        if stage.dead > limits.dead_letters:
            said.append(f"{stage.dead} records are dead letters; dead_letters = {limits.dead_letters}")
    return said
