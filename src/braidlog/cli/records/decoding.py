"""`--decode`, `--decode-key`: decode values and keys to JSON by the schema ids that they begin with.

A record that cannot be decoded is printed as it is, with one warning per reason. Each schema id is fetched once.
"""

from collections.abc import Callable
from typing import Any

import click
import msgspec

from braidlog.cli.terminal.connection import NodeOptions, node_options, read_token
from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.client.errors import Refusal, RefusedError
from braidlog.client.schema_registry import RegistryClient
from braidlog.registry.errors import Code, RegistryError
from braidlog.registry.schemas import Schema
from braidlog.registry.value_json import SchemaValues, UndecodedError


class Decoding:
    """Decoder of values and keys; connects to the registry at the first record with a schema id."""

    def __init__(self, registry: str, *, values: bool, keys: bool) -> None:
        self._values, self._keys = values, keys
        self._said: set[str] = set()
        self._read = SchemaValues(*_schemas_of(registry))

    def value(self, record: ConsumedRecord) -> bytes | None:
        """Return the value as JSON; None if it is not to be decoded, or cannot be."""
        return self._decoded(record, record.value, "value") if self._values else None

    def key(self, record: ConsumedRecord) -> bytes | None:
        return self._decoded(record, record.key, "key") if self._keys else None

    def decoded(self, record: ConsumedRecord) -> ConsumedRecord:
        """Return the record with decoded parts as JSON."""
        value, key = self.value(record), self.key(record)
        return msgspec.structs.replace(
            record, value=record.value if value is None else value, key=record.key if key is None else key
        )

    def _decoded(self, record: ConsumedRecord, part: bytes | None, name: str) -> bytes | None:
        if part is None:
            return None
        try:
            return self._read.json_of(part)
        except UndecodedError as error:
            if str(error) not in self._said:
                self._said.add(str(error))
                place = f"{record.topic}/{record.partition} at {record.offset}"
                click.echo(f"{place}: {name} printed without decoding: {error}", err=True)
            return None


def _schemas_of(url: str) -> tuple[Callable[[int], Schema], Callable[[Any], Schema]]:
    context = click.get_current_context()
    given = {name: context.params[name] for name in NodeOptions.__struct_fields__}
    who = node_options(context, given, context.params["profile"])
    try:
        client = RegistryClient(url, who.principal or "", read_token(who.token_file) or "")
    except ValueError as error:
        raise click.UsageError(f"--registry: {error}") from None
    unknown: set[int] = set()

    def schema_of(number: int) -> Schema:
        if number not in unknown:
            try:
                return client.schema(number)
            except RefusedError as error:
                if error.reason is not Refusal.INVALID:
                    raise
                unknown.add(number)
        raise RegistryError(Code.SCHEMA_NOT_FOUND, f"not in the registry at {url}")

    return schema_of, client.find
