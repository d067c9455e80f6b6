"""`braid rule`: access rules."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("braidlog.cli.rule.change:list_", "List access rules."),
        "add": ("braidlog.cli.rule.change:add", "Add a rule that allows or denies access."),
        "delete": ("braidlog.cli.rule.change:delete", "Delete an access rule."),
    },
    epilog="""\b
Example:
  braid rule add billing read --topic orders --group 'billing-*'
  braid rule add mallory '*' --group 'billing-*' --deny
  braid rule list
""",
)
def rule() -> None:
    """List, add and delete access rules.

    A rule allows or denies a principal an operation on topics, groups, transactional ids or keys. Rules can be added while
    a node runs if its settings contain `auth.rules`. Rules of the settings are listed, and are changed there.
    """
