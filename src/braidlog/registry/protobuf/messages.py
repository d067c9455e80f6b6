"""Parses Protobuf values with Google's library, by a message of a schema.

Does not handle: columns, registries.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from braidlog.registry.errors import WHY_CHARS_MAX, ColumnTypeError
from braidlog.registry.protobuf.schema import File, Message, joined
from braidlog.registry.schemas import SERIALIZED, ProtobufSchema, Schema


class MessageType:
    """A message of a schema: its name, and its parser."""

    def __init__(self, schema: ProtobufSchema, references: Mapping[str, Schema], name: str = "") -> None:
        """`name`: with or without its package; default: the first message of the file."""
        self.indexes, self.name = _place(schema.file, name)
        self.pool = pool = descriptor_pool.DescriptorPool()
        for path, each in references.items():
            _add(pool, path, ProtobufSchema(each.text, references))
        _add(pool, "braidlog/value.proto", schema)
        try:
            self.descriptor: Descriptor = pool.FindMessageTypeByName(self.name)
        except (KeyError, TypeError) as error:
            raise ColumnTypeError(f"{self.name}: Google's library refuses its file: {error}") from None
        self.make: Any = message_factory.GetMessageClass(self.descriptor)

    def parsed(self, payloads: list[bytes | None], errors: list[str | None]) -> list[Any]:
        parse = self.make.FromString
        messages: list[Any] = []
        for at, payload in enumerate(payloads):
            value = None
            if payload is not None:
                try:
                    value = parse(payload)
                except DecodeError as error:
                    errors[at] = f"not a message {self.name}: {error}"[:WHY_CHARS_MAX]
            messages.append(value)
        return messages


def _place(file: File, name: str) -> tuple[tuple[int, ...], str]:
    def walk(listed: Sequence[Message], scope: str, path: tuple[int, ...]) -> Any:  # noqa: ANN401 - pairs
        for at, each in enumerate(listed):
            yield (*path, at), joined(scope, each.name)
            yield from walk(each.messages, joined(scope, each.name), (*path, at))

    every: list[tuple[tuple[int, ...], str]] = list(walk(file.messages, file.package, ()))
    for path, full in every:
        if name in ("", full, full.removeprefix(f"{file.package}.")):
            return path, full
    raise ColumnTypeError(f"no message {name!r} in the schema; it has {', '.join(full for _, full in every) or 'none'}")


def _add(pool: descriptor_pool.DescriptorPool, path: str, schema: ProtobufSchema) -> None:
    made = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.formatted(SERIALIZED)))
    made.name = path
    for each in made.dependency:
        if each.startswith("google/protobuf/"):
            _add_googles(pool, each)
    try:
        pool.Add(made)
    except TypeError as error:
        raise ColumnTypeError(f"{path}: {error}") from None


def _add_googles(pool: descriptor_pool.DescriptorPool, path: str) -> None:
    """Add a file that is part of every compiler."""
    module = path.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        descriptor = __import__(module, fromlist=["DESCRIPTOR"]).DESCRIPTOR
    except ImportError:
        raise ColumnTypeError(f"import {path!r}: Google's library has no such file") from None
    made = descriptor_pb2.FileDescriptorProto.FromString(descriptor.serialized_pb)
    for each in made.dependency:
        _add_googles(pool, each)
    pool.Add(made)
