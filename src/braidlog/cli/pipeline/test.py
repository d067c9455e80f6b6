"""`braid pipeline test`: tests a pipeline's layers on records of files."""

import click

from braidlog.cli import NO, end
from braidlog.cli.pipeline.options import CONF, FOLDER, started, wishes


@click.command("test")
@FOLDER
@click.option("--only", multiple=True, metavar="NAME", help="Run only this test; repeatable.")
@click.option(
    "--update", is_flag=True, help="Overwrite the files of expected rows with the actual rows; review the difference."
)
@click.option("--master", metavar="URL", help="Spark master.  [default: local[1]]")
@CONF
def test(folder: str, only: tuple[str, ...], master: str | None, conf: tuple[str, ...], *, update: bool) -> None:
    """Test the pipeline in FOLDER: feed records of files to its layers and compare the output rows.

    Needs no node, and does not change the pipeline's output. A test is a folder in tests/:

    \b
    tests/first/records.jsonl        input: lines as `braid consume --json` prints them
                                     {"value": {"id": "a", "amount": 3}, "key": "a"}
    tests/first/silver.jsonl         the rows of that stage (or flow), one JSON object each
                                     {"id": "a", "amount": 3.0}
    tests/first/dead-letters.jsonl   {"value": "no JSON", "reason": "the value is no JSON object"}

    The order of rows does not matter, and only the columns in a file are compared. An empty file expects no rows. Exits
    with 1 if rows differ.

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
        end(NO, f"{wrong} {'stage differs' if wrong == 1 else 'stages differ'} from the expected rows")
