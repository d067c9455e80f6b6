"""`braid pipeline status`: shows the status of each stage."""

from typing import TYPE_CHECKING

import click

from braidlog.cli import NO, end, say
from braidlog.cli.pipeline.options import FOLDER
from braidlog.cli.terminal.output import OUTPUT, print_json, print_table

if TYPE_CHECKING:
    from braidlog.spark.pipeline.status import Status


@click.command("status")
@FOLDER
@click.option("--offline", is_flag=True, help="Do not query the server for the ends of topics; omits lag.")
@click.option(
    "--check",
    is_flag=True,
    help="Print the limits of [alerts] in pipeline.toml that are exceeded, and exit with 1 if any is.",
)
@OUTPUT
def status(folder: str, output: str, *, offline: bool, check: bool) -> None:
    """Show the last batch, position, lag, rows and expectations of each stage of the pipeline in FOLDER.

    Reads checkpoints and batch reports; does not start Spark, and works while the pipeline runs.

    \b
    Example:
      braid pipeline run --once clicks && braid pipeline status --check clicks || mail -s clicks ops@example.org
    """
    from braidlog.model.clock import SystemClock  # noqa: PLC0415 - not for --help
    from braidlog.spark.pipeline import operations  # noqa: PLC0415
    from braidlog.spark.pipeline import status as tool  # noqa: PLC0415
    from braidlog.spark.pipeline.alerts import alerts  # noqa: PLC0415
    from braidlog.spark.pipeline.project import open_project  # noqa: PLC0415

    project = open_project(folder)
    found = tool.status(project, None if offline else operations.topic_ends(project))
    said = alerts(project, found, SystemClock().now_ms()) if check else []
    if output == "json":
        print_json(found)
    else:
        _print(found)
    for sentence in said:
        say(sentence)
    if said:
        end(NO)


def _print(found: "Status") -> None:
    rows = [
        [
            each.stage,
            str(each.generation),
            "-" if each.batch < 0 else str(each.batch),
            "-" if each.lag is None else str(each.lag),
            str(each.rows),
            "-" if each.written is None or each.dead else str(each.written),
            str(each.dead),
            str(each.late_rows),
            "-" if each.rows_per_second is None else f"{each.rows_per_second:.0f}",
            each.last or "-",
        ]
        for each in found.stages
    ]
    print_table(["STAGE", "GENERATION", "BATCH", "LAG", "IN", "OUT", "DEAD", "LATE", "ROWS/S", "LAST BATCH"], rows)
    for each in found.stages:
        for name, count in each.violations.items():
            click.echo(f"{each.stage}: {name} violated by {count} {'row' if count == 1 else 'rows'}")
    for name, place in found.tables.items():
        click.echo(f"table {name}: {place}")
