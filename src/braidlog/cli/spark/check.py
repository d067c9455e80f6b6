"""`braid spark check`: lists changes that a job of Spark's Kafka connector needs."""

from pathlib import Path

import click

from braidlog.cli import NO, end
from braidlog.cli.terminal.output import OUTPUT, print_json, print_table


@click.command("check")
@click.argument("job", type=click.Path(exists=True, dir_okay=False))
@OUTPUT
def check(job: str, output: str) -> None:
    """List the lines to change when a PySpark JOB moves from format("kafka") to format("braidlog").

    Reads the job without running it. Options that both formats share are left out. Exits with 1 if an option is not
    supported.

    \b
    Example:
      braid spark check job.py
    """
    from braidlog.spark import job_check  # noqa: PLC0415 - not for --help

    try:
        found = job_check.check(Path(job).read_text(encoding="utf-8"), job)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{job} is not valid Python: {error}") from error
    if output == "json":
        print_json(found)
    else:
        print_table(
            ["LINE", "WHAT", "VERDICT", ""], [[str(each.line), each.what, each.verdict, each.says] for each in found]
        )
    if any(each.verdict == job_check.REFUSED for each in found):
        end(NO)
