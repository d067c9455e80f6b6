"""`braid schema list`, `get`, `register`, `check`, `delete`."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from braidlog.cli import NO, end, say
from braidlog.cli.terminal.arguments import confirm, together
from braidlog.cli.terminal.connection import read_token
from braidlog.cli.terminal.output import OUTPUT, hint, print_json, print_rows
from braidlog.cli.terminal.secrets import not_typed
from braidlog.client.schema_registry import RegistryClient
from braidlog.model.reporting.node_report import LOCAL_REGISTRY_URL
from braidlog.registry.schemas import Reference

TYPES = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}


class SubjectRow(msgspec.Struct, frozen=True):
    """The last version of a subject. `id` is the schema id in records."""

    subject: str
    version: int
    id: int
    type: str


class SchemaText(msgspec.Struct, frozen=True):
    """A version of a subject; `references`: the schemas that it refers to."""

    subject: str
    version: int
    id: int
    type: str
    references: list[Reference]
    schema: str


def with_registry(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command a client of the registry that the options name."""

    @click.option(
        "--url",
        envvar="BRAID_REGISTRY_URL",
        show_envvar=True,
        default=LOCAL_REGISTRY_URL,
        show_default=True,
        callback=not_typed,
        help="URL of the schema registry.",
    )
    @click.option(
        "--principal", envvar="BRAID_PRINCIPAL", show_envvar=True, default="", help="User to authenticate as."
    )
    @click.option(
        "--token-file",
        envvar="BRAID_TOKEN_FILE",
        show_envvar=True,
        type=click.Path(exists=True),
        help="File with the principal's token or password.",
    )
    @click.option(
        "--admin-token-file",
        envvar="BRAID_ADMIN_TOKEN_FILE",
        show_envvar=True,
        type=click.Path(exists=True),
        help="File with the admin token; used without --principal.",
    )
    @wraps(command)
    def run(
        url: str,
        principal: str,
        token_file: str | None,
        admin_token_file: str | None,
        **arguments: Any,  # noqa: ANN401 - click's own
    ) -> None:
        try:
            client = RegistryClient(url, principal, read_token(token_file if principal else admin_token_file) or "")
        except ValueError as error:
            raise click.UsageError(f"--url: {error}") from None
        command(client, **arguments)

    return run


_file_options = together(
    click.argument("subject"),
    click.argument("file", type=click.Path(exists=True, dir_okay=False)),
    click.option(
        "--type",
        "kind",
        type=click.Choice(sorted(TYPES.values()), case_sensitive=False),
        help="By default as the file's name ends: .avsc, .json, .proto.",
    ),
    click.option(
        "--reference",
        "references",
        multiple=True,
        metavar="NAME=SUBJECT:VERSION",
        help="What the schema calls NAME is this version; may be repeated.",
    ),
)


def _wanted(file: str, kind: str | None, references: tuple[str, ...]) -> dict[str, Any]:
    found = kind.upper() if kind else TYPES.get(Path(file).suffix)
    if found is None:
        raise click.UsageError(f"{file} has none of the extensions {', '.join(TYPES)}: pass --type")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except ValueError:
        raise click.UsageError(f"{file} is not valid UTF-8") from None
    return {"schema": text, "schemaType": found, "references": [_reference(each) for each in references]}


def _reference(words: str) -> dict[str, Any]:
    name, _, place = words.rpartition("=")
    subject, _, version = place.rpartition(":")
    if not (name and subject and version.isdecimal()):
        raise click.UsageError(f"--reference is NAME=SUBJECT:VERSION, not {words!r}")
    return {"name": name, "subject": subject, "version": int(version)}


@click.command("list", epilog="Example: braid schema list -o json")
@click.option("--prefix", default="", help="Only subjects with this prefix.")
@OUTPUT
@with_registry
def list_(client: RegistryClient, prefix: str, output: str) -> None:
    """List all subjects with their last version."""
    found = client.ask("GET", "schemas", latestOnly="true", subjectPrefix=prefix)
    rows = [
        SubjectRow(each["subject"], each["version"], each["id"], each.get("schemaType", TYPES[".avsc"]))
        for each in found
    ]
    empty = "No schemas.", "braid schema register orders-value order.avsc"
    print_rows(rows, output, ["SUBJECT", "VERSION", "ID", "TYPE"], empty)


@click.command(epilog="Example: braid schema get orders-value --version 3 > order.avsc")
@click.argument("subject")
@click.option("--version", default="latest", show_default=True, help="A number, or `latest`.")
@OUTPUT
@with_registry
def get(client: RegistryClient, subject: str, version: str, output: str) -> None:
    """Print a schema of SUBJECT as it was registered."""
    told = client.ask("GET", "subjects", subject, "versions", version)
    if output != "json":
        click.echo(told["schema"])
        return
    number, schema = client.version(subject, str(told["version"]))
    print_json(SchemaText(subject, told["version"], number, schema.type, list(schema.references), schema.text))


@click.command(epilog="Example: braid schema register orders-value order.avsc")
@_file_options
@with_registry
def register(client: RegistryClient, subject: str, file: str, kind: str | None, references: tuple[str, ...]) -> None:
    """Register the schema in FILE as the next version of SUBJECT; do nothing if it is registered."""
    wanted = _wanted(file, kind, references)
    number = client.ask("POST", "subjects", subject, "versions", body=wanted)["id"]
    click.echo(f"registered in {subject}: id={number}")
    hint(f"braid schema get {subject}")


@click.command(epilog="Example: braid schema check orders-value order.avsc")
@_file_options
@with_registry
def check(client: RegistryClient, subject: str, file: str, kind: str | None, references: tuple[str, ...]) -> None:
    """Check whether the schema in FILE is compatible with SUBJECT, without registering it.

    Exits with 1 and lists the incompatibilities if it is not.
    """
    wanted = _wanted(file, kind, references)
    told = client.ask("POST", "compatibility", "subjects", subject, "versions", body=wanted, verbose="true")
    if not told["is_compatible"]:
        for each in told.get("messages", []):
            say(each)
        end(NO, f"{file} is incompatible with {subject}")
    click.echo(f"{file} is compatible with {subject}")


@click.command(epilog="Example: braid schema delete orders-value --version 3")
@click.argument("subject")
@click.option("--version", help="Version to delete.  [default: all]")
@click.option(
    "--permanent",
    is_flag=True,
    help="Permanently delete what was deleted before; records with its id can no longer be decoded.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@with_registry
def delete(client: RegistryClient, subject: str, version: str | None, *, permanent: bool, yes: bool) -> None:
    """Delete a version of SUBJECT, or all versions; existing records can still be decoded."""
    what = f"version {version} of {subject}" if version else subject
    if permanent:
        confirm(f"Delete {what} permanently?", yes=yes)
    path = ["subjects", subject, *(["versions", version] if version else [])]
    client.ask("DELETE", *path, permanent=str(permanent).lower())
    click.echo(f"deleted {what}{' permanently' if permanent else ''}")
