"""`braid pipeline replay`: rebuilds layers and tables."""

import click

from braidlog.cli.pipeline.options import ADMIN, CONF, FOLDER, MASTER, ending_well, progress, spark_of, wishes
from braidlog.cli.terminal.arguments import confirm


@click.command("replay")
@FOLDER
@click.option("--from", "origin", required=True, metavar="WHERE", help="earliest, an offset, a time, or a layer.")
@click.option("--dry-run", is_flag=True, help="Print what would be rebuilt without changing anything.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@MASTER
@CONF
@ADMIN
def replay(
    folder: str, origin: str, master: str | None, conf: tuple[str, ...], admin: str | None, *, dry_run: bool, yes: bool
) -> None:
    """Rebuild the output of the pipeline in FOLDER after its settings or transforms have changed.

    \b
    --from earliest               all layers but bronze, from the log
    --from 1000                   the same, from this offset of every partition
    --from 2026-11-15T08:00:00Z   the same, from this time
    --from bronze                 all layers but bronze, from the table bronze, with records that the log no longer has
    --from silver                 the layers after silver; likewise windows

    Tables are replaced, records are appended to topics again, and keys are set again. The next run resumes an interrupted
    replay.
    """
    from braidlog.spark.pipeline import operations  # noqa: PLC0415 - Spark, not for --help
    from braidlog.spark.pipeline.project import open_project  # noqa: PLC0415

    project = open_project(folder)
    wanted = wishes(master, conf, admin)
    plan = operations.plan_replay(project, origin)
    for sentence in plan.sentences(project):
        click.echo(sentence)
    if dry_run:
        return
    confirm("Replay?", yes=yes)
    with spark_of(project, wanted) as spark, ending_well() as stop, progress() as show:
        operations.run(spark, project, wanted, stop, show, plan)
