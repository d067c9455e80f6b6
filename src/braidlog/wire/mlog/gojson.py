"""JSON as Go's encoding/json reads and writes it, for the structs of this dialect.

Go's rules: a key matches a field whatever its case; a key that matches none is ignored; a missing or null field is
the zero value; bytes are padded base64 and nil is null; a number has no fraction and fits its type.
Invariant: a peer's bytes become a message or a `ProtocolError`, and never more objects than `check_json` allows.

Two readers, compared by a test. msgspec decodes what real clients send (exact names, no extras). Documents that
msgspec rejects are read again by the rules above, so that these are the same message:

    {"Topic":"a"}        {"topic":"a","Extra":1,"Acks":null}
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec.inspect import (
    Field,
    IntType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from braidlog.codec.errors import ProtocolError
from braidlog.codec.json_guard import TOKENS_MAX, check_json, error_position

INT64_MAX: Final = 2**63 - 1

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=INT64_MAX)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
# A Go uint64. No log exceeds 2^63 records: a larger number is read as 2^63-1, which is also past every log end.
U64 = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]

# Go writes initialisms in capitals, but the document is inconsistent: ReplicaNodeID and ReplicaNodeIds, IsISR and
# Isr.
_GO_WORDS: Final = {"leo": "LEO", "id": "ID"}
_GO_NAMES: Final = {"is_isr": "IsISR", "consumer_id": "Id"}


def go_name(name: str) -> str:
    """Return the Go field name of an attribute: `replica_node_id` → `ReplicaNodeID`."""
    return _GO_NAMES.get(name) or "".join(_GO_WORDS.get(word, word.capitalize()) for word in name.split("_"))


class GoStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=go_name):
    """A message whose keys are Go field names.

    Unknown keys are forbidden so that such a document is read by the rules: an unknown key may be a field in another
    case.
    """


Struct = TypeVar("Struct", bound=msgspec.Struct)

_ENCODER: Final = msgspec.json.Encoder()


def write(message: msgspec.Struct) -> bytes:
    """Return the message as Go's json.Marshal writes it: fields in order, none omitted, nil as null."""
    return _ENCODER.encode(message)


class GoReader(Generic[Struct]):
    """Reads documents of one type."""

    __slots__ = ("_decode", "_shape", "_type")

    def __init__(self, message_type: type[Struct]) -> None:
        self._type = message_type
        self._decode = msgspec.json.Decoder(message_type).decode
        self._shape = _shape(message_type)

    def read(self, payload: bytes) -> Struct:
        """Return the message; raises `ProtocolError`."""
        if len(payload) > TOKENS_MAX:  # a shorter document cannot have that many values
            check_json(payload)
        try:
            return self._decode(payload)
        except msgspec.ValidationError:
            return self.read_by_rules(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"{self._type.__name__}: {error}").at(error_position(payload, error)) from error

    def read_by_rules(self, payload: bytes) -> Struct:
        """Read a document one rule at a time, if it is not spelled as Go spells it."""
        check_json(payload)
        try:
            document = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"{self._type.__name__}: {error}").at(error_position(payload, error)) from error
        try:
            return msgspec.convert(_conform({} if document is None else document, self._shape), self._type)
        except (msgspec.ValidationError, ProtocolError) as error:
            wrong = ProtocolError(f"{self._type.__name__}: {error}")
            raise wrong.at(error_position(payload, wrong)) from error


def _shape(message_type: type[msgspec.Struct]) -> StructType:
    shape = type_info(message_type)
    assert isinstance(shape, StructType)
    return shape


def _fold_case(key: str) -> str:
    # Go folds ASCII case and, by Unicode's simple folding, the long s and the Kelvin sign (which lower() folds too).
    # casefold() would also fold distinct letters to one.
    return key.replace("\u017f", "s").lower()


def _conform(value: Any, shape: Type) -> Any:  # noqa: ANN401 - a JSON document
    """Return the value in the form that msgspec expects for `shape`; msgspec rejects values of other forms."""
    if isinstance(shape, UnionType):
        shape = next(part for part in shape.types if not isinstance(part, NoneType))
    if isinstance(value, dict) and isinstance(shape, StructType):
        return _conform_object(value, shape)
    if isinstance(value, list) and isinstance(shape, VarTupleType):
        return [_zero(shape.item_type) if item is None else _conform(item, shape.item_type) for item in value]
    if isinstance(value, int) and INT64_MAX < value < 2**64 and _is_u64(shape):
        return INT64_MAX
    return value


def _conform_object(document: Mapping[str, Any], shape: StructType) -> dict[str, Any]:
    fields: dict[str, Field] = {_fold_case(field.encode_name): field for field in shape.fields}
    conformed: dict[str, Any] = {}
    for key, value in document.items():
        field = fields.get(_fold_case(key))
        if field is None:
            continue
        # Go takes the last spelling; a document whose meaning depends on that is rejected.
        if field.encode_name in conformed:
            raise ProtocolError(f"{field.encode_name} is given in two spellings")
        conformed[field.encode_name] = None if value is None else _conform(value, field.type)
    return {name: value for name, value in conformed.items() if value is not None}


def _is_u64(shape: Type) -> bool:
    return isinstance(shape, IntType) and shape.ge == 0 and shape.le == INT64_MAX


def _zero(shape: Type) -> Any:  # noqa: ANN401 - a JSON document
    """Return Go's value for a null inside an array: nil if the items are pointers or bytes, else the zero value."""
    if isinstance(shape, StructType):
        return {}
    return "" if isinstance(shape, StrType) else None
