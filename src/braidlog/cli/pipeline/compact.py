"""`braid pipeline compact`: merges small files of tables."""

import click

from braidlog.cli.pipeline.options import FOLDER
from braidlog.cli.terminal.output import OUTPUT, print_json, print_table, size

HOUR_SECONDS = 3600


@click.command("compact")
@FOLDER
@click.option("--table", "names", multiple=True, metavar="NAME", help="Compact only this table; repeatable.")
@click.option(
    "--vacuum-hours",
    type=click.IntRange(min=0),
    default=168,
    show_default=True,
    help="Remove unreferenced files older than this many hours.",
)
@OUTPUT
def compact(folder: str, names: tuple[str, ...], vacuum_hours: int, output: str) -> None:
    """Compact small files of the tables of the pipeline in FOLDER, and remove unreferenced files.

    Does not start Spark. The pipeline can run at the same time: concurrent micro-batches are not lost, and older versions
    of a table stay readable for --vacuum-hours.
    """
    from braidlog.spark.pipeline.layers import upkeep  # noqa: PLC0415 - not for --help
    from braidlog.spark.pipeline.project import open_project  # noqa: PLC0415

    done = upkeep.compact_tables(open_project(folder), frozenset(names), vacuum_hours * HOUR_SECONDS)
    if output == "json":
        print_json(done)
        return
    rows = [
        [
            name,
            each.files_removed,
            each.files_added,
            size(each.bytes_removed),
            size(each.bytes_added),
            len(each.vacuumed),
        ]
        for name, each in done.items()
    ]
    print_table(["TABLE", "FILES", "BECAME", "BYTES", "BECAME", "REMOVED"], rows)
