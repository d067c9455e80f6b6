"""`braid rule`: who may do what.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("braidlog.cli.rule.change:list_", "Which rules there are."),
        "add": ("braidlog.cli.rule.change:add", "Allow something, or deny it."),
        "delete": ("braidlog.cli.rule.change:delete", "Take back a rule that was added."),
    },
    epilog="""\b
Example:
  braid rule add billing read --topic orders --group 'billing-*'
  braid rule add mallory '*' --group 'billing-*' --deny
  braid rule list
""",
)
def rule() -> None:
    """Rules: who may, or may not, do what with topics, groups, transactional ids and keys. Where the node's settings have rules,
    more can be added while it runs; those of the settings are shown, and changed there."""
