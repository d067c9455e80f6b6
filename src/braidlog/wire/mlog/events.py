"""The metadata events of mlog's Raft log.

Knows: each event's number and JSON tags. Refuses to know: consensus, and what applying an event does.
Invariant: reader and writer follow from `EVENTS`.

    {"event_type":3,"data":{"topic":"orders","replica_id":"n2","isr":false}}
"""

from enum import IntEnum
from typing import Any, Final, cast

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.wire.mlog.gojson import I64, U16, U32, GoReader, write


class MetadataEventType(IntEnum):
    """By position in the protocol document, "Metadata event types"."""

    CREATE_TOPIC = 0
    DELETE_TOPIC = 1
    LEADER_CHANGE = 2
    ISR_UPDATE = 3
    ADD_NODE = 4
    REMOVE_NODE = 5
    UPDATE_NODE = 6


class EventStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event whose keys are the document's JSON tags: our names unless a field says otherwise."""


class CreateTopicEvent(EventStruct, frozen=True):
    topic: str = ""
    replica_count: U32 = 0
    leader_node_id: str = msgspec.field(default="", name="leader_id")
    leader_epoch: I64 = 0
    replica_node_ids: tuple[str, ...] | None = msgspec.field(default=None, name="replicas")


class DeleteTopicEvent(EventStruct, frozen=True):
    topic: str = ""


class LeaderChangeEvent(EventStruct, frozen=True):
    topic: str = ""
    leader_node_id: str = msgspec.field(default="", name="leader_id")
    leader_epoch: I64 = 0


class IsrUpdateEvent(EventStruct, frozen=True):
    """Carries no epoch: unfenced, as the request that causes it."""

    topic: str = ""
    replica_node_id: str = msgspec.field(default="", name="replica_id")
    isr: bool = False


class AddNodeEvent(EventStruct, frozen=True):
    node_id: str = ""
    addr: str = ""
    rpc_addr: str = ""


class RemoveNodeEvent(EventStruct, frozen=True):
    node_id: str = ""


class UpdateNodeEvent(EventStruct, frozen=True):
    node_id: str = ""
    is_healthy: bool = False


Event = (
    CreateTopicEvent
    | DeleteTopicEvent
    | LeaderChangeEvent
    | IsrUpdateEvent
    | AddNodeEvent
    | RemoveNodeEvent
    | UpdateNodeEvent
)

EVENTS: Final[dict[MetadataEventType, type[EventStruct]]] = {
    MetadataEventType.CREATE_TOPIC: CreateTopicEvent,
    MetadataEventType.DELETE_TOPIC: DeleteTopicEvent,
    MetadataEventType.LEADER_CHANGE: LeaderChangeEvent,
    MetadataEventType.ISR_UPDATE: IsrUpdateEvent,
    MetadataEventType.ADD_NODE: AddNodeEvent,
    MetadataEventType.REMOVE_NODE: RemoveNodeEvent,
    MetadataEventType.UPDATE_NODE: UpdateNodeEvent,
}


class _Envelope(EventStruct, frozen=True):
    event_type: U16 = 0
    data: Any = None


_TYPE_OF: Final[dict[type[EventStruct], MetadataEventType]] = {event: number for number, event in EVENTS.items()}
_ENVELOPE_READER: Final = GoReader(_Envelope)
_READERS: Final[dict[int, GoReader[Any]]] = {number: GoReader(event) for number, event in EVENTS.items()}


def encode_event(event: Event) -> bytes:
    """The event in its envelope."""
    return write(_Envelope(_TYPE_OF[type(event)], event))


def decode_event(payload: bytes) -> Event:
    """The event; `ProtocolError` for a number that is none, or bytes that are no event."""
    envelope = _ENVELOPE_READER.read(payload)
    reader = _READERS.get(envelope.event_type)
    if reader is None:
        raise ProtocolError(f"metadata event type {envelope.event_type} is not known")
    # Go would apply `"data":null` as an event about the topic "": nobody means that.
    if envelope.data is None:
        raise ProtocolError(f"a {MetadataEventType(envelope.event_type).name} event without data")
    return cast("Event", reader.conform(envelope.data))
