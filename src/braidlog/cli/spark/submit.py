"""`braid spark submit-args`: what a cluster has to be told."""

import sys

import click


@click.command("submit-args")
@click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Spark's master.")
@click.option("--python", default=sys.executable, metavar="PATH", help="Python of the executors.  [default: this one]")
@click.option("--archive", metavar="FILE", help="An environment packed with venv-pack or conda-pack, to be shipped.")
def submit_args(master: str, python: str, archive: str | None) -> None:
    """Print the flags with which spark-submit runs a job that uses braidlog's formats.

    Executors import braidlog: it has to be installed where they run, in the Python that --python names; or an --archive of an
    environment that has it is shipped with the job.

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
            # The shell splits what $(…) expands to at blanks, and removes no quotes in it.
            raise click.UsageError(f"{flag!r} has a blank: $(braid spark submit-args …) cannot pass it to spark-submit")
    click.echo(" ".join(flags))
