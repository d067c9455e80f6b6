"""`braid spark`: Spark with braidlog's formats."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "shell": ("braidlog.cli.spark.shell:shell", "Start a PySpark shell."),
        "check": ("braidlog.cli.spark.check:check", "List changes that a Kafka connector job needs."),
        "submit-args": ("braidlog.cli.spark.submit:submit_args", "Print flags for spark-submit."),
    },
    epilog="""\b
Example:
  braid spark shell
  braid spark check job.py
  spark-submit $(braid spark submit-args --master spark://host:7077) job.py
""",
)
def spark() -> None:
    """Run Spark with the formats braidlog, braidlog-kv and braidlog-lake, without jars or package lists."""
