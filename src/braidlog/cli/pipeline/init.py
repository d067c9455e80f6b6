"""`braid pipeline init`: a project to begin with."""

from pathlib import Path

import click


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option(
    "--template",
    type=click.Choice(["events", "sdp", "wire-log"]),
    default="events",
    show_default=True,
    help="events: a topic of JSON, by settings; sdp: the same by functions, on Spark Declarative Pipelines; wire-log: what "
    "`braid serve --wire-log` wrote.",
)
@click.option("--name", help="Of the pipeline.  [default: the folder's]")
def init(folder: str, template: str, name: str | None) -> None:
    """Write a project into FOLDER: a pipeline.toml with every setting explained, and transforms in SQL and Python to change.

    Nothing that is there is overwritten.

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
    click.echo(f"next: look at {root / 'pipeline.toml'}, then: braid pipeline run --once {folder}")
