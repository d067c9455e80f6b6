"""`braid pipeline backfill`: a range of the log for tables that lack it."""

import click

from braidlog.cli.pipeline.options import CONF, FOLDER, MASTER, spark_of, wishes
from braidlog.cli.terminal.output import OUTPUT, print_json


@click.command("backfill")
@FOLDER
@click.option("--start", default="earliest", show_default=True, metavar="WHERE", help="An offset or a time.")
@click.option("--end", default="latest", show_default=True, metavar="WHERE", help="An offset or a time, exclusive.")
@click.option("--dry-run", is_flag=True, help="Count what would be added, and add nothing.")
@MASTER
@CONF
@OUTPUT
def backfill(
    folder: str, start: str, end: str, master: str | None, conf: tuple[str, ...], output: str, *, dry_run: bool
) -> None:
    """Put the records of a range into the tables bronze, silver and windows of the pipeline in FOLDER, as far as they lack them;
    with Spark's own pipelines, into the tables of all flows.

    In batch, beside the stream's checkpoints. What the stream has not read yet is left to it; a row that is there is not added
    again, so that a backfill may be repeated. Topics and keys are not touched.
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
