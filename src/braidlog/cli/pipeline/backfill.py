"""`braid pipeline backfill`: adds a range of the log to tables that lack it."""

import click

from braidlog.cli.pipeline.options import CONF, FOLDER, MASTER, spark_of, wishes
from braidlog.cli.terminal.output import OUTPUT, print_json


@click.command("backfill")
@FOLDER
@click.option("--start", default="earliest", show_default=True, metavar="WHERE", help="An offset or a time.")
@click.option("--end", default="latest", show_default=True, metavar="WHERE", help="An offset or a time, exclusive.")
@click.option("--dry-run", is_flag=True, help="Count the rows to add without adding them.")
@MASTER
@CONF
@OUTPUT
def backfill(
    folder: str, start: str, end: str, master: str | None, conf: tuple[str, ...], output: str, *, dry_run: bool
) -> None:
    """Add the missing records of a range to the tables of the pipeline in FOLDER.

    The tables are bronze, silver and windows; with Spark Declarative Pipelines, those of all flows. Runs as a batch,
    independent of the stream's checkpoints. Records that the stream has not read yet are left to the stream. Existing
    rows are not added again, so a backfill can be repeated. Topics and keys do not change.
    """
    from braidlog.spark.pipeline import operations  # noqa: PLC0415 - Spark, not for --help
    from braidlog.spark.pipeline.project import open_project  # noqa: PLC0415

    project = open_project(folder)
    operations.check_backfill(project)
    wanted = wishes(master, conf)
    with spark_of(project, wanted) as spark:
        done = operations.backfill(spark, project, start, end, dry_run=dry_run)
    if output == "json":
        print_json(done)
        return
    for sentence in done.sentences("would be " if dry_run else ""):
        click.echo(sentence)
