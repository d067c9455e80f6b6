"""Maps certificates to nodes by their common name alone."""

import re

_NAME = re.compile(r"node-(0|[1-9][0-9]{0,9})", re.ASCII)


def name_of(node: int) -> str:
    """The common name of a node, which dialling nodes check."""
    return f"node-{node}"


def node_of(name: str | None) -> int | None:
    """The node of a name; None if it is not a node's name."""
    found = _NAME.fullmatch(name or "")
    return None if found is None else int(found[1])
