"""Decodes captured Kafka traffic: requests with the server's reader, responses by the API and version of their
request.

Handles correlation ids, and the bare tokens after a SaslHandshake of version 0.
"""

import struct
from typing import Final, NamedTuple

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import Refused
from braidlog.wire.kafka.apis import BY_KEY, FRAME_BYTES_MAX, Api, Key
from braidlog.wire.kafka.connection import Request, ServerConnection, read_response
from braidlog.wire.kafka.messages.data import ProduceRequest
from braidlog.wire.kafka.messages.security import SaslHandshakeResponse
from braidlog.wire.observer import Asked, Fault, LengthPrefixed, Reading, Side, fault_of, hidden_text

_LENGTH_BYTES: Final = 4
_HEADER: Final = struct.Struct(">hhi")
_GUARDED: Final = frozenset(
    {Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE, Key.DESCRIBE_USER_SCRAM_CREDENTIALS, Key.ALTER_USER_SCRAM_CREDENTIALS}
)


_VERSION_MAX: Final = 31
"""Larger than any API number. A bare token has letters in this place, which are larger numbers."""


class _Asked(NamedTuple):
    api: Api
    version: int


class KafkaObserver(LengthPrefixed):
    frame_bytes_max = FRAME_BYTES_MAX
    volatile = frozenset(
        {
            "port",
            "host",
            "cluster_id",
            "log_append_time_ms",
            "timestamp",
            "producer_id",
            "member_id",
            "leader",
            "leader_epoch",
        }
        | {
            "records",
            "throttle_time_ms",
            "topic_id",
            "session_id",
            "member_assignment",
            "members",
            "size_bytes",
            "log_dir",
        }
    )

    def __init__(self) -> None:
        self._asked = Asked()
        self._takes_tokens = False
        self._tokens = 0

    def may_be_secret(self, side: Side, begun: bytes) -> bool:
        if side is Side.SERVER or self._takes_tokens or len(begun) < _LENGTH_BYTES + 2:
            return True
        key = int.from_bytes(begun[_LENGTH_BYTES : _LENGTH_BYTES + 2], "big", signed=True)
        version = int.from_bytes(begun[_LENGTH_BYTES + 2 : _LENGTH_BYTES + 4], "big")
        return key not in BY_KEY or key in _GUARDED or version > _VERSION_MAX

    def read(self, side: Side, frame: bytes) -> Reading:
        payload = frame[_LENGTH_BYTES:]
        reading = Reading("?", {"Size": len(payload)}, _LENGTH_BYTES)
        try:
            if side is Side.CLIENT:
                self._request(reading, frame, payload)
            else:
                self._response(reading, payload)
        except ProtocolError as error:
            reading.fault = fault_of(error, _LENGTH_BYTES)
        return reading

    def _request(self, reading: Reading, frame: bytes, payload: bytes) -> None:
        if len(payload) < _HEADER.size:
            self._token(reading, payload)
            return
        key, version, correlation_id = _HEADER.unpack_from(payload)
        api = BY_KEY.get(key)
        if self._takes_tokens and (api is None or version not in api.versions):
            self._token(reading, payload)
            return
        self._takes_tokens = False
        reading.name = "?" if api is None else api.name
        reading.head |= {"Api": f"{key}({reading.name})", "Ver": version, "CorrID": correlation_id}
        connection = ServerConnection()
        connection.receive(frame)
        event = connection.next_event()
        if isinstance(event, Refused):
            self._refused(reading, event, api, correlation_id)
            return
        assert isinstance(event, Request)
        reading.head["Client"] = event.client_id
        reading.message = event.message
        if not (isinstance(event.message, ProduceRequest) and event.message.acks == 0):
            self._asked[correlation_id] = _Asked(event.api, version)

    def _refused(self, reading: Reading, refused: Refused, api: Api | None, correlation_id: int) -> None:
        reading.is_secret = reading.head["Ver"] > _VERSION_MAX if api is None else api.key in _GUARDED
        reading.fault = fault_of(refused.error, 0 if refused.error.position in (0, 4, 6) else _LENGTH_BYTES)
        if refused.answer is not None:  # an ApiVersions in a newer version: it is answered in version 0
            self._asked[correlation_id] = _Asked(BY_KEY[Key.API_VERSIONS], 0)

    def _token(self, reading: Reading, payload: bytes) -> None:
        reading.name, reading.is_secret = "SaslToken", True
        reading.fields = {"token": hidden_text(len(payload))}
        if self._takes_tokens:
            self._tokens += 1
        else:
            reading.name = "?"
            reading.fault = Fault(f"a request of {len(payload)} bytes is too short for its header", 0)

    def _response(self, reading: Reading, payload: bytes) -> None:
        if self._tokens and self._takes_tokens:
            self._tokens -= 1
            reading.name, reading.is_secret = "SaslToken", True
            reading.fields = {"token": hidden_text(len(payload))}
            return
        if len(payload) < 4:
            raise ProtocolError(f"a response of {len(payload)} bytes is too short for its header", 0)
        correlation_id = int.from_bytes(payload[:4], "big", signed=True)
        reading.head["CorrID"] = correlation_id
        asked = self._asked.pop(correlation_id, None)
        if asked is None:
            reading.is_secret = True
            reading.fault = Fault(f"an answer to {correlation_id}, whose request was not captured", _LENGTH_BYTES)
            return
        reading.name = asked.api.name
        reading.head |= {"Api": f"{int(asked.api.key)}({asked.api.name})", "Ver": asked.version}
        reading.is_secret = asked.api.key in _GUARDED
        reading.message = read_response(asked.api, asked.version, correlation_id, payload).message
        reading.is_secret = False
        if asked.version == 0 and isinstance(reading.message, SaslHandshakeResponse):
            self._takes_tokens = not reading.message.error_code
