"""`braid spark`: Spark, set up for braidlog.

Knows: its commands' names. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "shell": ("braidlog.cli.spark.shell:shell", "A Python prompt with a session named `spark`."),
        "check": ("braidlog.cli.spark.check:check", "What differs for a job of Spark's Kafka connector."),
        "submit-args": ("braidlog.cli.spark.submit:submit_args", "Flags for spark-submit on a cluster."),
    },
    epilog="""\b
Example:
  braid spark shell
  braid spark check job.py
  spark-submit $(braid spark submit-args --master spark://host:7077) job.py
""",
)
def spark() -> None:
    """Spark, set up so that the formats braidlog, braidlog-kv and braidlog-lake are found: no jar, no package list."""
