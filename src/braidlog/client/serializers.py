"""Converts values to bytes and back: text, JSON, and JSON or MessagePack of msgspec types (and dataclasses).

A value of None stays None: in a compacted topic it deletes its key.

ORDERS = json_of(Order)
producer.send("orders", ORDERS.encode(order)); ORDERS.decode(record.value)
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from braidlog.client.errors import RecordError

T = TypeVar("T")


class Serializer(Generic[T]):
    """`encode` and `decode`; raise `RecordError` for a value that cannot be written or read."""

    def __init__(self, name: str, write: Callable[[T], bytes], read: Callable[[bytes], T]) -> None:
        self.name = name
        self._write = write
        self._read = read

    def __repr__(self) -> str:
        return f"<Serializer {self.name}>"

    def encode(self, value: T | None) -> bytes | None:
        try:
            return None if value is None else self._write(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise RecordError(f"{type(value).__name__} cannot be written as {self.name}: {error}") from error

    def decode(self, data: bytes | None) -> T | None:
        try:
            return None if data is None else self._read(data)
        except ValueError as error:
            raise RecordError(f"not {self.name}: {error}") from error


TEXT: Serializer[str] = Serializer("UTF-8 text", str.encode, bytes.decode)
JSON: Serializer[Any] = Serializer("JSON", msgspec.json.encode, msgspec.json.decode)


def json_of(kind: type[T]) -> Serializer[T]:
    """JSON of one type, which is validated when it is read."""
    reader = msgspec.json.Decoder(kind)
    return Serializer(f"JSON of {kind.__name__}", msgspec.json.Encoder().encode, reader.decode)


def msgpack_of(kind: type[T]) -> Serializer[T]:
    """MessagePack of one type, which is validated when it is read."""
    reader = msgspec.msgpack.Decoder(kind)
    return Serializer(f"MessagePack of {kind.__name__}", msgspec.msgpack.Encoder().encode, reader.decode)
