"""`braid acl`: the rules of `braid rule`, in Kafka's words."""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.acl.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("braidlog.cli.rule.change:list_", "List access rules."),
        "allow": (f"{_MODULE}:allow", "Add a rule that allows access."),
        "deny": (f"{_MODULE}:deny", "Add a rule that denies access."),
        "remove": (f"{_MODULE}:remove", "Remove an access rule."),
    },
    epilog="""\b
Example:
  braid acl allow billing read --topic orders --group 'billing-*'
  braid acl deny mallory '*' --group 'billing-*'
  braid acl remove mallory '*' --group 'billing-*' --deny
""",
)
def acl() -> None:
    """List, add and remove access rules in Kafka's words.

    They are the rules of `braid rule`: each allows or denies a principal an operation on topics, groups, transactional
    ids or keys. Rules can be added while a node runs if its settings contain `auth.rules`.
    """
