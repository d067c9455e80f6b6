"""`braid wire`: the wire tools, seen from a terminal.

Knows: their names, and the options that several have. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "send": ("braidlog.cli.wire.send:send", "Send a file of annotated hex, compare the answers."),
        "tap": ("braidlog.cli.wire.tap:tap", "Stand between client and server; log, split, delay."),
        "decode": ("braidlog.cli.wire.decode:decode", "Take bytes, a log or a capture apart, message by message."),
        "dissector": ("braidlog.cli.wire.dissector:dissector", "Print a dissector for Wireshark."),
        "fuzz": ("braidlog.cli.wire.fuzz:fuzz", "Send damaged requests to a server, see that it stays well."),
    },
    epilog="""\b
Example:
  braid serve --wire-log - --wire-hex            every message on every port, as it passes
  braid wire tap --listen :7000 --to cursus://127.0.0.1 --hex > talk.wire
  braid wire send talk.wire --server cursus://127.0.0.1     the same conversation again: same answers?
  braid wire decode talk.wire                    field by field
""",
)
def wire() -> None:
    """See and say the bytes of the six protocols: cursus, flux, kafka, mayfly, mlog, rustlog.

    Tokens and passwords are never shown: what the protocols' tables declare secret is printed as **. The notation of
    annotated hex and all that the tools print is in docs/guides/wire-tools.md.
    """
