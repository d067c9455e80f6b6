"""`braid wire dissector`: prints a Wireshark dissector."""

import click

from braidlog.tools.wire.dissector import SPECS
from braidlog.tools.wire.dissector import dissector as lua
from braidlog.wire.cursus import DIALECT as CURSUS


@click.command(
    epilog=f"""\b
Example:
  braid wire dissector > braidlog.lua
  braid wire tap --listen :7000 --to :{CURSUS.port} --dialect cursus --pcapng talk.pcapng
  tshark -X lua_script:braidlog.lua -r talk.pcapng -d tcp.port=={CURSUS.port},cursus -V
  tshark -X lua_script:braidlog.lua -r talk.pcapng -T fields -e cursus.msg -e cursus.topic
  wireshark -X lua_script:braidlog.lua talk.pcapng
"""
)
@click.option(
    "-d",
    "--dialect",
    "dialects",
    multiple=True,
    type=click.Choice(sorted(SPECS)),
    help="Only this protocol; repeatable.",
)
def dissector(*, dialects: tuple[str, ...]) -> None:
    """Print a Lua dissector for Wireshark and tshark: cursus, flux, mayfly, mlog, rustlog, peer, on their usual ports.

    The dissector is generated from the server's message tables. Nodes speak peer to each other. Wireshark has its own
    dissector for kafka.
    """
    click.echo(lua(dialects or None), nl=False)
