"""`braid demo`: events to try things out with.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={"clicks": ("braidlog.cli.demo.clicks:clicks", "People who look at pages, fill baskets, sometimes order.")},
)
def demo() -> None:
    """Make events to try things out with."""
