"""`braid wire`: tools for the wire protocols."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "send": ("braidlog.cli.wire.send:send", "Send a file of annotated hex and compare the answers."),
        "tap": ("braidlog.cli.wire.tap:tap", "Proxy connections to a server and log messages."),
        "decode": ("braidlog.cli.wire.decode:decode", "Decode bytes, a log or a capture message by message."),
        "dissector": ("braidlog.cli.wire.dissector:dissector", "Print a Wireshark dissector."),
        "fuzz": ("braidlog.cli.wire.fuzz:fuzz", "Send damaged requests to a server and check its health."),
    },
    epilog="""\b
Example:
  braid serve --wire-log - --wire-hex            log every message on every port
  braid wire tap --listen :7000 --to cursus://127.0.0.1 --hex > talk.wire
  braid wire send talk.wire --server cursus://127.0.0.1     repeat the conversation, compare the answers
  braid wire decode talk.wire                    decode every field
""",
)
def wire() -> None:
    """Send, record, decode and fuzz messages of the six protocols: cursus, flux, kafka, mayfly, mlog, rustlog.

    Tokens and passwords are printed as **, by the protocols' tables of secret fields. docs/guides/wire-tools.md documents
    annotated hex and the output of the tools.
    """
