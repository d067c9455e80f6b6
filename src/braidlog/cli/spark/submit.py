"""`braid spark submit-args`: prints flags for spark-submit."""

import sys

import click


@click.command("submit-args")
@click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Spark master.")
@click.option(
    "--python", default=sys.executable, metavar="PATH", help="Python of the executors.  [default: this Python]"
)
@click.option(
    "--archive", metavar="FILE", help="Environment packed with venv-pack or conda-pack, shipped with the job."
)
def submit_args(master: str, python: str, archive: str | None) -> None:
    """Print the flags for spark-submit to run a job with braidlog's formats.

    Executors import braidlog. Install it in their Python (--python), or ship an environment that has it (--archive).

    \b
    Example:
      spark-submit $(braid spark submit-args --master spark://host:7077) job.py
      spark-submit $(braid spark submit-args --master yarn --archive env.tar.gz) job.py
    """
    from braidlog.spark.sessions import settings  # noqa: PLC0415 - not for --help

    conf = settings(master)
    conf["spark.pyspark.python"] = "./environment/bin/python" if archive else python
    if not archive:
        conf["spark.pyspark.driver.python"] = python
    flags = ["--master", master]
    if archive:
        flags += ["--archives", f"{archive}#environment"]
    for key, value in conf.items():
        flags += ["--conf", f"{key}={value}"]
    for flag in flags:
        if any(character.isspace() for character in flag):
            # The shell splits the output of $(…) at blanks, and does not remove quotes.
            raise click.UsageError(
                f"{flag!r} contains a blank: $(braid spark submit-args …) cannot pass it to spark-submit"
            )
    click.echo(" ".join(flags))
