"""`braid pipeline status`: how it stands."""

from typing import TYPE_CHECKING

import click

from braidlog.cli import NO, end, say
from braidlog.cli.pipeline.options import FOLDER
from braidlog.cli.terminal.output import OUTPUT, print_json, print_table

if TYPE_CHECKING:
    from braidlog.spark.pipeline.status import Status


@click.command("status")
@FOLDER
@click.option("--offline", is_flag=True, help="Do not ask the server for the ends of topics: no lag.")
@click.option(
    "--check", is_flag=True, help="Exit code 1 if a limit of [alerts] in pipeline.toml is passed, and say which."
)
@OUTPUT
def status(folder: str, output: str, *, offline: bool, check: bool) -> None:
    """Per stage of the pipeline in FOLDER: the last batch, how far it has read, how far it is behind, rows and expectations.

    Reads the checkpoints and what was told of batches; starts no Spark, and may be asked while the pipeline runs.

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
            click.echo(f"{each.stage}: {name} broken by {count} {'row' if count == 1 else 'rows'}")
    for name, place in found.tables.items():
        click.echo(f"table {name}: {place}")
