"""What the tools know of each dialect: where a frame ends, what is in it, what in it is secret.

Knows: names. Refuses to know: anything of a dialect that its folder in `wire/` does not say.
"""

from importlib import import_module
from typing import Final

from braidlog.tools.wire.dialects.contract import Talk

TALKS: Final = {
    "cursus": "CursusTalk",
    "flux": "FluxTalk",
    "kafka": "KafkaTalk",
    "mayfly": "MayflyTalk",
    "mlog": "MlogTalk",
    "rustlog": "RustlogTalk",
}

PORTS: Final = {"cursus": 9000, "flux": 9097, "kafka": 9092, "mayfly": 7275, "mlog": 9094, "rustlog": 9096}
"""Where each is spoken unless somebody says otherwise."""


def talk_of(dialect: str) -> type[Talk]:
    """A dialect is imported when it is first asked for."""
    module = import_module(f"braidlog.tools.wire.dialects.{dialect}")
    found: type[Talk] = getattr(module, TALKS[dialect])
    return found
