"""`braid config init`: writes a settings file with every setting and its default, all commented out.

The file changes nothing until the operator uncomments a line. An existing file is not overwritten.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from braidlog.cli import REFUSED, end
from braidlog.cli.terminal.output import QUIET, hint
from braidlog.server.config import ServerConfig

NOTES = {
    "data_dir": "folder of the log",
    "node": "number of this node",
    "drain_seconds": "how long a shutdown drains requests",
    "disk_reserve_bytes": "with less free space on the disk, writes are refused",
    "idle_partition_seconds": "close partitions that were idle for this time until their next use; 0: never",
    "listeners": "one port per protocol; 0: any free port. tls.cert and tls.key enable TLS",
    "listeners.kafka.auto_create": "create unknown topics on first use, with `partitions` partitions",
    "listeners.kafka.session_timeout_ms_min": "refuse group members with a shorter session timeout",
    "listeners.flux.replication_factor": "of topics created on first use; with two or more replicas acks=all needs two in sync",
    "listeners.flux.forward": "forward requests to the leader; off: redirect the client",
    "listeners.kafka.reauthentication_ms": "clients must reauthenticate after this time; 0: never",
    "cluster": "cluster metadata in etcd; without this section a node keeps its metadata in data_dir",
    "cluster.etcd": 'URLs of the etcd members, or "embedded": this node runs its own member',
    "cluster.prefix": "prefix of this cluster's keys in etcd",
    "cluster.token": "instead of user and password",
    "cluster.client_port": "client port of an embedded member, on cluster.peers.host; beyond loopback with TLS",
    "cluster.initial_cluster": 'all embedded members of a new cluster: "1=10.0.0.1,2=10.0.0.2,3=10.0.0.3"',
    "topics": "defaults of topics; `braid topic create -c` and `alter` override them per topic",
    "topics.flush": "durability of an acknowledgement: ack (synced to disk), interval, os",
    "topics.retention_ms": "maximum age of records; -1: unlimited",
    "topics.retention_bytes": "maximum size of a partition; -1: unlimited",
    "auth": "tokens, users and access rules",
    "auth.tokens": 'a table: alice = "SHA-256 of the token, in hex" (printf %s "$TOKEN" | sha256sum)',
    "auth.users": "a table: user name to SCRAM verifier, for Kafka clients with passwords",
    "auth.rules": 'tables [[auth.rules]]: principal = "alice", operations = ["read", "write"], topic = "orders*", group = "a*"',
    "auth.owner_by_first_use": "a group or transactional id without a rule belongs to its first user",
    "limits": "limits of all clients together, and of each client",
    "quotas": "bytes per second of one principal; -1: unlimited",
    "wire_log": "log of every decoded protocol message, for debugging",
    "kv": "key-value store and its change feed",
    "admin": "console, /metrics, /healthz and /readyz; token is the SHA-256 of the admin token",
    "log": "log on standard error",
}


def template() -> str:
    """Return the settings file."""
    head = "# Settings of a braidlog node: braid serve --config FILE. Commented lines show the default.\n"
    return head + "\n".join(_section("", msgspec.to_builtins(ServerConfig()))) + "\n"


def _section(prefix: str, values: dict[str, Any]) -> Iterator[str]:
    """Yield values before tables: TOML assigns a value after a table to that table."""
    inner = {name: value for name, value in values.items() if isinstance(value, dict) and value}
    plain = {name: value for name, value in values.items() if name not in inner}
    if prefix:
        yield ""
        if prefix in NOTES:
            yield f"# {NOTES[prefix]}"
        if plain:
            yield f"[{prefix}]"
    for name, value in plain.items():
        dotted = f"{prefix}.{name}" if prefix else name
        note = f"  # {NOTES[dotted]}" if dotted in NOTES else ""
        yield f"# {name} = {_toml(value)}{note}"
    for name, value in inner.items():
        yield from _section(f"{prefix}.{name}" if prefix else name, value)


def _toml(value: Any) -> str:  # noqa: ANN401 - any setting
    """Format a setting as JSON, which is valid TOML for all setting types."""
    return "{}" if value == {} else json.dumps(value)


@click.command(epilog="Example: braid config init braid.toml && braid serve --config braid.toml")
@click.argument("file", default="braid.toml")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@QUIET
def init(file: str, *, force: bool) -> None:
    """Write a settings file with every setting, its default and purpose, all commented out; `-` is standard output."""
    if file == "-":
        click.echo(template(), nl=False)
        return
    try:
        with Path(file).open("w" if force else "x", encoding="utf-8") as out:
            out.write(template())
    except FileExistsError:
        end(REFUSED, f"{file} already exists; pass --force to overwrite it")
    except OSError as error:
        end(REFUSED, f"{file}: {error.strerror}")
    click.echo(f"wrote {file}")
    hint(f"braid serve --config {file}", f"braid config show --config {file} --origin")
