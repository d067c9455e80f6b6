"""`braid pipeline init`: creates a pipeline project."""

from pathlib import Path

import click


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option(
    "--template",
    type=click.Choice(["events", "sdp", "wire-log"]),
    default="events",
    show_default=True,
    help="events: a topic of JSON, configured by settings; sdp: the same in Python, on Spark Declarative Pipelines; "
    "wire-log: logs of `braid serve --wire-log`.",
)
@click.option("--name", help="Name of the pipeline.  [default: name of the folder]")
def init(folder: str, template: str, name: str | None) -> None:
    """Create a pipeline project in FOLDER: a documented pipeline.toml, and sample transforms in SQL and Python.

    Existing files are not overwritten.

    \b
    Example:
      braid pipeline init clicks
      braid pipeline init orders --template sdp
      braid pipeline init wires --template wire-log
    """
    from braidlog.spark.pipeline import templates  # noqa: PLC0415 - not for --help

    root = Path(folder)
    for path in templates.write(template, root, name or root.resolve().name.lower().replace("_", "-")):
        click.echo(f"wrote {path}")
    click.echo(f"next: edit {root / 'pipeline.toml'}, then run: braid pipeline run --once {folder}")
