"""`braid pipeline test`: its layers on rows of files."""

import click

from braidlog.cli import NO, end
from braidlog.cli.pipeline.options import CONF, FOLDER, started, wishes


@click.command("test")
@FOLDER
@click.option("--only", multiple=True, metavar="NAME", help="Only this test; repeatable.")
@click.option(
    "--update", is_flag=True, help="Write the rows that came into the files of expected rows; look at the difference."
)
@click.option("--master", metavar="URL", help="Spark's master.  [default: local[1]]")
@CONF
def test(folder: str, only: tuple[str, ...], master: str | None, conf: tuple[str, ...], *, update: bool) -> None:
    """Test the pipeline of FOLDER: give records of a file to its layers and compare the rows that come out.

    No node is needed, and nothing that the pipeline has written is touched. A test is a folder in tests/:

    \b
    tests/first/records.jsonl        what goes in: lines as `braid consume --json` prints them
                                     {"value": {"id": "a", "amount": 3}, "key": "a"}
    tests/first/silver.jsonl         the rows of that stage (or flow), one JSON object each
                                     {"id": "a", "amount": 3.0}
    tests/first/dead-letters.jsonl   {"value": "no JSON", "reason": "the value is no JSON object"}

    The order of rows does not count, and only the columns that a file names are compared. An empty file expects no rows. Exit
    code 1: rows differ.

    \b
    Example:
      braid pipeline test clicks
      braid pipeline test clicks --only first --update
    """
    from braidlog.spark.pipeline import operations  # noqa: PLC0415 - Spark, not for --help
    from braidlog.spark.pipeline.layers import row_tests  # noqa: PLC0415 - Spark, not for --help
    from braidlog.spark.pipeline.project import open_project  # noqa: PLC0415

    project = open_project(folder)
    tests = row_tests.folders(project, frozenset(only))
    wrong = 0
    with started(project, operations.test_session(project, wishes(master, conf))) as spark:
        for path in tests:
            for each in row_tests.run(spark, project, path, update=update):
                wrong += not each.is_right
                for line in each.sentences():
                    click.echo(line)
    if wrong:
        end(NO, f"{wrong} {'stage makes' if wrong == 1 else 'stages make'} other rows than expected")
