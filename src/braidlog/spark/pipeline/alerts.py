"""Alerts: what of a pipeline's status is worth telling somebody, by the limits of its file.

Knows: the section [alerts]. Refuses to know: who is told: `braid pipeline status --check` ends with exit code 1.
"""

from datetime import UTC, datetime, timedelta

from braidlog.spark.pipeline.project import Project, seconds_of
from braidlog.spark.pipeline.status import Status


def alerts(project: Project, found: Status, now_ms: int) -> list[str]:
    """A sentence for each limit that is passed; none if all is well."""
    limits = project.pipeline.alerts
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    said = []
    for stage in found.stages:
        if stage.lag is not None and stage.lag > limits.lag_records:
            said.append(f"{stage.stage} is {stage.lag} records behind; lag_records = {limits.lag_records}")
        # One that has read everything is silent because nothing comes.
        since = now - datetime.fromisoformat(stage.last) if stage.last and stage.lag else timedelta()
        if since.total_seconds() > seconds_of(limits.silent):
            said.append(f"{stage.stage} is behind and has done nothing since {stage.last}; silent = {limits.silent!r}")
        if stage.dead > limits.dead_letters:
            said.append(f"{stage.dead} records are dead letters; dead_letters = {limits.dead_letters}")
    return said
