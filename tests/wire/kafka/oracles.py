"""Two other implementations of Kafka's messages, to hold our bytes against: kafka-python's and kio's.

Fields are matched by position: all three list what a version has in the order of the wire, under names of their own.

What kio cannot say is not asked of it: error codes that it does not name, times beyond its datetime; and it reads times to the
second. `tamed` makes a message of ours such that kio can say it too; kafka-python is asked everything.
"""

import dataclasses
import datetime as dt
import importlib
import io
import re
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import get_schema_field_type, is_optional
from tests.wire.kafka.values import is_own

from braidlog.wire.kafka.apis import Api
from braidlog.wire.kafka.rows import Field, Kind, Message, fields_of

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in an old way
    _MODULES = [
        importlib.import_module(f"kafka.protocol.{name}")
        for name in ("admin", "consumer", "metadata", "producer", "sasl")
    ]
    _Container = importlib.import_module("kafka.protocol.data_container").DataContainer


def rows(message: type[Message], version: int) -> list[Field]:
    return [field for field in fields_of(message) if version in field.versions and not is_own(field)]


# -- kafka-python ----------------------------------------------------------------------------------------------


def kafka_python(message: type[Message]) -> Any:
    """kafka-python's class of the same name."""
    return next(getattr(module, message.__name__) for module in _MODULES if hasattr(module, message.__name__))


def kafka_python_bytes(message: Message, version: int) -> bytes:
    theirs = kafka_python(type(message))
    return bytes(_to_kafka_python(message, version, theirs, version_at_top=True).encode(version=version))


def kafka_python_read(message: type[Message], version: int, data: bytes) -> Message:
    return _from_kafka_python(kafka_python(message).decode(data, version=version), message, version)


def _pairs(struct: Any, message: type[Message], version: int) -> list[tuple[Field, Any]]:
    theirs = [field for field in struct._fields if field.for_version_q(version)]
    ours = rows(message, version)
    assert len(theirs) == len(ours), (
        message,
        version,
        [field.name for field in theirs],
        [field.name for field in ours],
    )
    return list(zip(ours, theirs, strict=True))


def _to_kafka_python(message: Message, version: int, theirs: Any, *, version_at_top: bool = False) -> Any:
    values = {}
    for ours, field in _pairs(theirs._struct, type(message), version):
        value = getattr(message, ours.name)
        if ours.tag is not None and value == ours.default:
            continue
        values[field.name] = _value_to_kafka_python(value, ours, field, version)
    return theirs(version=version, **values) if version_at_top else theirs(**values)


def _value_to_kafka_python(value: Any, ours: Field, field: Any, version: int) -> Any:
    if value is None:
        return None
    if ours.is_array:
        one = ours._replace(is_array=False)
        return [_value_to_kafka_python(item, one, field, version) for item in value]
    if ours.kind is Kind.STRUCT:
        if not field.has_data_class():  # it makes them as it needs them
            field.set_data_class(type(field.type_str, (_Container,), {"_struct": field}))
        return _to_kafka_python(value, version, field.data_class)
    if _is_bits(field):  # the numbers of the bits that are set
        return {bit for bit in range(32) if value & 1 << bit}
    return uuid.UUID(bytes=value) if ours.kind is Kind.UUID else value


def _from_kafka_python(theirs: Any, message: type[Message], version: int) -> Message:
    return message(
        **{
            ours.name: _value_from_kafka_python(getattr(theirs, field.name), ours, field, version)
            for ours, field in _pairs(theirs._struct, message, version)
            if ours.tag is None or (theirs.tags and field.name in theirs.tags)
        }
    )


def _is_bits(field: Any) -> bool:
    return getattr(getattr(field, "_type", None), "__name__", "") == "BitField"


def _value_from_kafka_python(value: Any, ours: Field, field: Any, version: int) -> Any:
    if _is_bits(field):
        bits = sum(1 << bit for bit in ({31} if value is None else value))
        return bits - 2**32 if bits >= 2**31 else bits
    if value is None:
        # A UUID of nothing but zeros is None there.
        return bytes(16) if ours.kind is Kind.UUID and not ours.is_array else None
    if ours.is_array:
        one = ours._replace(is_array=False)
        return [_value_from_kafka_python(item, one, field, version) for item in value]
    if ours.kind is Kind.STRUCT:
        assert ours.struct is not None
        return _from_kafka_python(value, ours.struct, version)
    if ours.kind is Kind.UUID:
        return value.bytes
    return bytes(value) if ours.kind in (Kind.BYTES, Kind.RECORDS) else value


# -- kio -------------------------------------------------------------------------------------------------------


def kio_class(api: Api, message: type[Message], version: int) -> Any:
    folder = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).lower()
    side = "request" if message is api.request else "response"
    return getattr(importlib.import_module(f"kio.schema.{folder}.v{version}.{side}"), message.__name__)


def kio_bytes(api: Api, message: Message, version: int) -> bytes:
    kind = kio_class(api, type(message), version)
    out = io.BytesIO()
    entity_writer(kind)(out, _to_kio(message, version, kind))
    return out.getvalue()


def kio_read(api: Api, message: type[Message], version: int, data: bytes) -> Message:
    kind = kio_class(api, message, version)
    entity, size = entity_reader(kind)(data, 0)
    assert size == len(data)
    return _from_kio(entity, message, version)


def tamed(message: Message, version: int, kind: Any) -> Message:
    """The message with what kio can say in place of what it cannot."""
    values = {}
    for ours, field in _kio_pairs(type(message), version, kind):
        value = getattr(message, ours.name)
        nested = _kio_nested(field)
        if nested is not None and value is not None:
            one = ours.default == value and ours.tag is not None
            if ours.is_array:
                value = [tamed(item, version, nested) for item in value]
            elif not one:
                value = tamed(value, version, nested)
        elif value is not None:
            value = _tame_value(value, get_schema_field_type(field))
        values[ours.name] = value
    return type(message)(**values)


def _tame_value(value: Any, kind: str) -> Any:
    if kind == "error_code":
        return value % 100
    if kind == "datetime_i64":
        return -1 if value == -1 else abs(value) % 2**40 // 1000 * 1000
    if kind == "timedelta_i64":
        return abs(value) % 2**40
    return value


def nullables(api: Api, message: type[Message], version: int) -> Iterator[tuple[str, bool, bool]]:
    """Every field of a message, whether it may be null in `version` here, and there."""
    yield from _nullables(message, version, kio_class(api, message, version))


def _nullables(message: type[Message], version: int, kind: Any) -> Iterator[tuple[str, bool, bool]]:
    for ours, field in _kio_pairs(message, version, kind):
        nested = _kio_nested(field)
        if nested is not None:
            assert ours.struct is not None
            yield from _nullables(ours.struct, version, nested)
        elif get_schema_field_type(field) in ("uuid", "datetime_i64"):
            continue  # None stands there for a value: no UUID, no time
        yield f"{message.__name__}.{ours.name} {version}", version in ours.nullable, is_optional(field)


def _kio_pairs(message: type[Message], version: int, kind: Any) -> list[tuple[Field, Any]]:
    theirs = dataclasses.fields(kind)
    ours = rows(message, version)
    assert len(theirs) == len(ours), (
        message,
        version,
        [field.name for field in theirs],
        [field.name for field in ours],
    )
    return list(zip(ours, theirs, strict=True))


def _kio_nested(field: Any) -> Any:
    """The class of a nested entity, if the field has one."""
    parts = [field.type, *getattr(field.type, "__args__", ())]
    parts += [deep for part in parts for deep in getattr(part, "__args__", ())]
    return next((part for part in parts if dataclasses.is_dataclass(part)), None)


def _to_kio(message: Message, version: int, kind: Any) -> Any:
    values: dict[str, Any] = {}
    for ours, field in _kio_pairs(type(message), version, kind):
        value = getattr(message, ours.name)
        if ours.tag is not None and value == ours.default:
            continue
        nested = _kio_nested(field)
        if value is None:
            values[field.name] = None
        elif nested is not None:
            values[field.name] = (
                tuple(_to_kio(item, version, nested) for item in value)
                if ours.is_array
                else _to_kio(value, version, nested)
            )
        else:
            kafka_type = get_schema_field_type(field)
            values[field.name] = (
                tuple(_value_to_kio(item, kafka_type) for item in value)
                if ours.is_array
                else _value_to_kio(value, kafka_type)
            )
    return kind(**values)


def _value_to_kio(value: Any, kind: str) -> Any:
    if kind == "error_code":
        return ErrorCode(value)
    if kind.startswith("timedelta"):
        return dt.timedelta(milliseconds=value)
    if kind == "datetime_i64":
        return None if value == -1 else _EPOCH + dt.timedelta(milliseconds=value)
    return uuid.UUID(bytes=value) if kind == "uuid" else value


def _from_kio(entity: Any, message: type[Message], version: int) -> Message:
    values = {}
    for ours, field in _kio_pairs(message, version, type(entity)):
        value = getattr(entity, field.name)
        if ours.is_array and value is not None:
            values[ours.name] = [_value_from_kio(item, ours, version, field) for item in value]
        else:
            values[ours.name] = _value_from_kio(value, ours, version, field)
    return message(**values)


def _value_from_kio(value: Any, ours: Field, version: int, field: Any) -> Any:
    if dataclasses.is_dataclass(value):
        assert ours.struct is not None
        return _from_kio(value, ours.struct, version)
    kind = get_schema_field_type(field) if _kio_nested(field) is None else ""
    if value is None:
        return bytes(16) if kind == "uuid" else -1 if kind == "datetime_i64" else None
    if kind == "error_code":
        return int(value.value)
    if kind.startswith("timedelta"):
        return round(value.total_seconds() * 1000)
    if kind == "datetime_i64":
        return round((value - _EPOCH).total_seconds() * 1000)
    return value.bytes if kind == "uuid" else value
