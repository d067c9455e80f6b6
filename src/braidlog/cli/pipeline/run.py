"""`braid pipeline run`: all there is now, or on and on."""

import click

from braidlog.cli.pipeline.options import ADMIN, CONF, FOLDER, MASTER, ending_well, progress, spark_of, wishes


@click.command("run")
@FOLDER
@click.option("--once", is_flag=True, help="Take what is there now through all layers, then end.")
@click.option("--stage", "stages", multiple=True, metavar="NAME", help="Only this stage; repeatable.")
@click.option("--dry-run", is_flag=True, help="Template sdp: let Spark check the graph and show it; run nothing.")
@MASTER
@CONF
@ADMIN
def run(
    folder: str,
    stages: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    admin: str | None,
    *,
    once: bool,
    dry_run: bool,
) -> None:
    """Run the pipeline of FOLDER on Spark.

    Ctrl-C stops it: a micro-batch that is not finished is abandoned and done again by the next run, which goes on where this one
    stopped; nothing is written twice. Progress is told to a node's admin port, if there is one (its token: BRAID_ADMIN_TOKEN).

    A pipeline of the template wire-log is always run once. One of the template sdp runs on Spark Declarative Pipelines, which
    need `pip install 'braidlog[sdp,lake]'`; its --master may be sc://host, a Spark Connect server.

    \b
    Example:
      braid pipeline run --once clicks
      braid pipeline run clicks --master spark://host:7077
    """
    from braidlog.spark.pipeline import operations  # noqa: PLC0415 - Spark, not for --help
    from braidlog.spark.pipeline.project import open_project  # noqa: PLC0415

    project = open_project(folder)
    wanted = wishes(master, conf, admin, once=once, stages=stages)
    if dry_run:
        operations.check_dry_run(project)
    operations.check_source(project)
    with spark_of(project, wanted) as spark:
        if project.pipeline.kind == "wire-log":
            done = operations.analyse(spark, project)
            click.echo(f"{done.requests} requests of {', '.join(each.name for each in done.dialects)}: {done.page}")
            return
        if dry_run:
            for sentence in operations.dry_run(spark, project):
                click.echo(sentence)
            return
        with ending_well() as stop, progress() as show:
            operations.run(spark, project, wanted, stop, show)
