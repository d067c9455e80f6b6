"""`braid spark check`: what differs for a job of Spark's Kafka connector."""

from pathlib import Path

import click

from braidlog.cli import NO, end
from braidlog.cli.terminal.output import OUTPUT, print_json, print_table


@click.command("check")
@click.argument("job", type=click.Path(exists=True, dir_okay=False))
@OUTPUT
def check(job: str, output: str) -> None:
    """List what a PySpark JOB that reads or writes Kafka has to say differently with format("braidlog"), by its lines.

    The job is read, not run. Options that are the same in both are left out. Exit code 1 if something is refused.

    \b
    Example:
      braid spark check job.py
    """
    from braidlog.spark import job_check  # noqa: PLC0415 - not for --help

    try:
        found = job_check.check(Path(job).read_text(encoding="utf-8"), job)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{job} cannot be read as Python: {error}") from error
    if output == "json":
        print_json(found)
    else:
        print_table(
            ["LINE", "WHAT", "VERDICT", ""], [[str(each.line), each.what, each.verdict, each.says] for each in found]
        )
    if any(each.verdict == job_check.REFUSED for each in found):
        end(NO)
