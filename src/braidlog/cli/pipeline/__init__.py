"""`braid pipeline`: Spark pipelines from a topic to tables, topics and keys."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "init": ("braidlog.cli.pipeline.init:init", "Create a pipeline project."),
        "test": ("braidlog.cli.pipeline.test:test", "Test the layers on records of files."),
        "run": ("braidlog.cli.pipeline.run:run", "Run a pipeline, once or continuously."),
        "status": ("braidlog.cli.pipeline.status:status", "Show the status of each stage."),
        "replay": ("braidlog.cli.pipeline.replay:replay", "Rebuild layers and tables from the log or from bronze."),
        "backfill": ("braidlog.cli.pipeline.backfill:backfill", "Add a range of the log to tables that lack it."),
        "compact": ("braidlog.cli.pipeline.compact:compact", "Compact small files of tables."),
    },
    epilog="""\b
Example:
  braid pipeline init clicks && cd clicks
  braid pipeline test                    test the layers on records of a file, without a node
  braid pipeline run --once              process all existing records
  braid pipeline status

A project is a folder with a pipeline.toml that documents every setting. Install Spark with
`pip install 'braidlog[spark,lake]'`; it needs Java 17.
""",
)
def pipeline() -> None:
    """Run Spark pipelines that turn a topic into raw, clean and aggregated tables, topics and keys.

    bronze (every record, unchanged) → silver (typed, deduplicated; invalid records in a dead-letter topic) → gold
    (windows, the last event of each key). Every stage is a Spark streaming query with a checkpoint: a stopped pipeline
    resumes where it stopped.
    """
