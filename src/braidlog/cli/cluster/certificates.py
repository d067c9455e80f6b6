"""`braid cluster certificates`: TLS certificates with which nodes authenticate to each other."""

from pathlib import Path

import click

from braidlog.model.clock import SystemClock

LOOPBACK = "127.0.0.1"
"""Addresses of every certificate: a member of etcd connects to itself."""


class NodeAt(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in newer clicks only
    """`1`, or `1=10.0.0.1,one.example.com`."""

    name = "node"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, tuple[str, ...]]:
        number, _, hosts = value.partition("=")
        if not (number.isascii() and number.isdigit()):
            self.fail(f"{value!r} is not a node: pass its number, or number=address (1=10.0.0.1)", param, ctx)
        named = tuple(filter(None, hosts.split(",")))
        return int(number), (*named, LOOPBACK)


@click.command(epilog="Example: braid cluster certificates ./certificates 1=10.0.0.1 2=10.0.0.2 3=10.0.0.3")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("nodes", metavar="NODE[=ADDRESS]...", nargs=-1, required=True, type=NodeAt())
def certificates(folder: Path, nodes: tuple[tuple[int, tuple[str, ...]], ...]) -> None:
    """Create the TLS certificates with which nodes authenticate to each other beyond loopback.

    Name each node by its number. Embedded members of etcd use the certificates too, and verify the node's addresses:
    add one or several, separated by commas.

    Creates the cluster's certificate authority (braidlog-ca.pem and .key) if it does not exist. Copy braidlog-ca.pem and
    the node's two files to each node, as cluster.peers.ca, .cert and .key. Keep braidlog-ca.key for later nodes. Existing
    files are never replaced.
    """
    try:
        from braidlog.server.peers.certificate_authority import authority_in, make_authority, make_node_certificate  # noqa: PLC0415
    except ImportError as error:  # it says what to install
        raise click.ClickException(str(error)) from error
    clock = SystemClock()
    try:
        authority = authority_in(folder)
        if not authority.certificate.exists():
            authority = make_authority(folder, clock)
            click.echo(f"{authority.certificate}  for every node; keep {authority.key} secret")
        for number, hosts in nodes:
            made = make_node_certificate(authority, folder, number, clock, hosts)
            click.echo(f"{made.certificate}  and {made.key.name}, for node {number}")
    except FileExistsError as error:
        raise click.ClickException(f"{error.filename} already exists and is not replaced: remove it first") from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror or error}") from error
