"""`braid pipeline`: records of a topic become tables, topics and keys, on Spark.

Knows: its commands' names. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "init": ("braidlog.cli.pipeline.init:init", "Write a project to begin with."),
        "test": ("braidlog.cli.pipeline.test:test", "Test it on rows: records in, rows of each layer out."),
        "run": ("braidlog.cli.pipeline.run:run", "Run it: all there is now, or on and on."),
        "status": ("braidlog.cli.pipeline.status:status", "Per stage: last batch, lag, rows, expectations."),
        "replay": ("braidlog.cli.pipeline.replay:replay", "Make layers and tables anew from the log or from bronze."),
        "backfill": ("braidlog.cli.pipeline.backfill:backfill", "Put a range of the log into tables that lack it."),
        "compact": ("braidlog.cli.pipeline.compact:compact", "Make many small files of tables few large ones."),
    },
    epilog="""\b
Example:
  braid pipeline init clicks && cd clicks
  braid pipeline test                    its layers on rows of a file, without a node
  braid pipeline run --once              everything that is there now
  braid pipeline status

A project is a folder with a pipeline.toml, which says what every setting does. Spark comes with
`pip install 'braidlog[spark,lake]'` and needs Java 17.
""",
)
def pipeline() -> None:
    """Records of a topic become raw, clean and summed-up tables, topics and keys.

    bronze (every record as it came) → silver (typed, each once, the rest to a dead-letter topic) → gold (windows, the last
    event of each key). Every stage is a streaming query of Spark's with a checkpoint: whatever is stopped goes on where it was.
    """
