"""A pipeline by Airflow 3: everything that is there every 15 minutes, then the limits of its file; few large files at night.

The promise: a run that is repeated, by Airflow's retries or by hand, writes nothing twice; exit codes say what to do next. Java,
`braid` and the project's folder are where the tasks run.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

FOLDER = "/srv/clicks"
BEGIN = datetime(2026, 1, 1)  # noqa: DTZ001 - in Airflow's own time zone

# No catch-up: a run takes all there is. One at a time: a second would be refused with exit code 3.
with DAG("clicks", schedule="*/15 * * * *", start_date=BEGIN, catchup=False, max_active_runs=1):
    run = BashOperator(
        task_id="run",
        bash_command=f"braid pipeline run --once {FOLDER}",
        retries=2,
        retry_delay=timedelta(minutes=1),
    )
    # Exit code 1: a limit of [alerts] in pipeline.toml is passed. The task's failure is the alert.
    check = BashOperator(task_id="check", bash_command=f"braid pipeline status --check {FOLDER}", retries=0)
    run >> check

with DAG("clicks-compact", schedule="30 2 * * *", start_date=BEGIN, catchup=False):
    BashOperator(task_id="compact", bash_command=f"braid pipeline compact {FOLDER}")
