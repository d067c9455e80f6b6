"""`braid config init`: a file of settings to begin with.

Knows: how defaults are written as TOML, and a sentence about some of them. Refuses to know: what the settings do.
Invariants: every setting stands in the file, as a comment, with its default: the file changes nothing until somebody takes a `#`
away. A file that is there is not written over.
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
    "data_dir": "where the log lives",
    "node": "the name of this node",
    "drain_seconds": "how long a stop waits for answers",
    "disk_reserve_bytes": "with less room on the disk no records and keys are taken",
    "idle_partition_seconds": "a partition that nobody has used for so long is closed until it is used again; 0 is never",
    "listeners": "one port for each protocol; 0 is any free one. With tls.cert and tls.key it speaks TLS",
    "listeners.kafka.auto_create": "a topic that a client asks for is made, with `partitions` partitions",
    "listeners.kafka.session_timeout_ms_min": "a member of a group whose session timeout is shorter is refused",
    "listeners.flux.replication_factor": "of a topic made on first use; acks=all needs two in sync, if there are two",
    "listeners.flux.forward": "ask the node that leads; off: tell the client where it is",
    "listeners.kafka.reauthentication_ms": "so long after it has said who it is a client has to say it again; 0 is never",
    "cluster": "the metadata of a cluster, kept in etcd; without it a node keeps its own in data_dir",
    "cluster.etcd": 'URLs of etcd\'s members, or "embedded": this node runs one beside itself',
    "cluster.prefix": "the keys of this cluster begin with it",
    "cluster.token": "in place of user and password",
    "cluster.client_port": "of an embedded member, where cluster.peers.host is; beyond loopback with its certificate",
    "cluster.initial_cluster": 'embedded members of a new cluster, all of them: "1=10.0.0.1,2=10.0.0.2,3=10.0.0.3"',
    "topics": "defaults for topics; `braid topic create -c` and `alter` change them for one",
    "topics.flush": "what an acknowledgement promises: ack (on the disk), interval, os",
    "topics.retention_ms": "how old records may get; -1 is no limit",
    "topics.retention_bytes": "how large a partition may get; -1 is no limit",
    "auth": "who may come in: tokens and users by name, rules for what each may do",
    "auth.tokens": 'a table: alice = "SHA-256 of her token, in hex" (printf %s "$TOKEN" | sha256sum)',
    "auth.users": "a table: name to SCRAM verifier, for Kafka clients with passwords",
    "auth.rules": 'tables [[auth.rules]]: principal = "alice", operations = ["read", "write"], topic = "orders*", group = "a*"',
    "auth.owner_by_first_use": "a group or transactional id that no rule speaks of is its first user's",
    "limits": "what all clients together, or one of them, may cost",
    "quotas": "bytes per second of one principal; -1 is no limit",
    "wire_log": "every message, taken apart and written down, for debugging",
    "kv": "keys and values, and the feed of their changes",
    "admin": "the console, /metrics, /healthz and /readyz; token is the SHA-256 of the token that lets one in",
    "log": "what the node says on standard error",
}


def template() -> str:
    """The whole file."""
    head = "# Settings of a braidlog node: braid serve --config FILE. What is commented out has its default.\n"
    return head + "\n".join(_section("", msgspec.to_builtins(ServerConfig()))) + "\n"


def _section(prefix: str, values: dict[str, Any]) -> Iterator[str]:
    """Single values first, then the tables: TOML would take a value behind a table for the table's."""
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


def _toml(value: Any) -> str:  # noqa: ANN401 - whatever a setting is
    """JSON's spelling is TOML's, for all that settings are."""
    return "{}" if value == {} else json.dumps(value)


@click.command(epilog="Example: braid config init braid.toml && braid serve --config braid.toml")
@click.argument("file", default="braid.toml")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@QUIET
def init(file: str, *, force: bool) -> None:
    """Write FILE (`-` is standard output) with every setting, its default, and what it is for; all of it commented out."""
    if file == "-":
        click.echo(template(), nl=False)
        return
    try:
        with Path(file).open("w" if force else "x", encoding="utf-8") as out:
            out.write(template())
    except FileExistsError:
        end(REFUSED, f"{file} is there already; --force writes over it")
    except OSError as error:
        end(REFUSED, f"{file}: {error.strerror}")
    click.echo(f"wrote {file}")
    hint(f"braid serve --config {file}", f"braid config show --config {file} --origin")
