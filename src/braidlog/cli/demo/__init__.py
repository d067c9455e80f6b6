"""`braid demo`: sample events."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={"clicks": ("braidlog.cli.demo.clicks:clicks", "Generate events of a web shop.")},
)
def demo() -> None:
    """Generate sample events."""
