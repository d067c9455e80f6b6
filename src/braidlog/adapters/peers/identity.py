"""Which node a certificate is of: its common name says so, and nothing else does."""

import re

_NAME = re.compile(r"node-(0|[1-9][0-9]{0,9})", re.ASCII)


def name_of(node: int) -> str:
    """The common name, and the name that who connects looks for."""
    return f"node-{node}"


def node_of(name: str | None) -> int | None:
    """None: this is no node's name."""
    found = _NAME.fullmatch(name or "")
    return None if found is None else int(found[1])
