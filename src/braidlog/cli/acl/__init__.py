"""`braid acl`: the rules of `braid rule`, in the words of who comes from Kafka.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.acl.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("braidlog.cli.rule.change:list_", "Which rules there are."),
        "allow": (f"{_MODULE}:allow", "Add a rule that allows."),
        "deny": (f"{_MODULE}:deny", "Add a rule that denies."),
        "remove": (f"{_MODULE}:remove", "Take back a rule that was added."),
    },
    epilog="""\b
Example:
  braid acl allow billing read --topic orders --group 'billing-*'
  braid acl deny mallory '*' --group 'billing-*'
  braid acl remove mallory '*' --group 'billing-*' --deny
""",
)
def acl() -> None:
    """Access control lists, which are rules here: the same as `braid rule`. Who may, or may not, do what with topics, groups,
    transactional ids and keys. Where the node's settings have rules, more can be added while it runs."""
