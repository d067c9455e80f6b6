"""Decodes captured cursus traffic: commands and batches with the server's reader, answers by their request.

READ_STREAM has two answer frames. Compression is detected by its first bytes: gzip, framed snappy, lz4, zstd. A raw
snappy block cannot be distinguished from text.
"""

import re
from collections import deque
from typing import Any, Final

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import Refused
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import replies
from braidlog.wire.cursus.batch import MAGIC, Batch
from braidlog.wire.cursus.commands import command_name
from braidlog.wire.cursus.compressors import COMPRESSORS, expand
from braidlog.wire.cursus.connection import FRAME_BYTES_MAX, ServerConnection
from braidlog.wire.cursus.failures import is_failure, read_failure
from braidlog.wire.cursus.messages import BY_NAME, SECRETS, Operation, Request
from braidlog.wire.cursus.requests import ReadStream, Stream
from braidlog.wire.observer import ASKED_MAX, Fault, LengthPrefixed, Reading, Side, fault_of, fields_of

_LENGTH_BYTES: Final = 4
_MAY_BE_SECRET: Final = re.compile(rb"token|auth", re.IGNORECASE)


class CursusObserver(LengthPrefixed):
    frame_bytes_max = FRAME_BYTES_MAX
    volatile = frozenset(
        {"host", "port", "leaders", "leader", "producerId", "last_heartbeat", "last_rebalance", "replicas", "isr"}
    )

    def __init__(self) -> None:
        self._asked: deque[Operation | None] = deque(maxlen=ASKED_MAX)
        self._contents: a.StreamContents | None = None

    def may_be_secret(self, side: Side, begun: bytes) -> bool:
        body = begun[_LENGTH_BYTES:]
        is_packed = any(body.startswith(compressor.magic) for compressor in COMPRESSORS.values())
        # The frame may end within `auth_token=`: only a batch surely has no secret.
        return side is Side.CLIENT and len(body) > 1 and (is_packed or not body.startswith(MAGIC))

    def read(self, side: Side, frame: bytes) -> Reading:
        body = frame[_LENGTH_BYTES:]
        reading = Reading("?", {"Len": len(body)}, _LENGTH_BYTES)
        try:
            plain = _expanded(body)
            if plain is not body:
                reading.head["Expanded"] = len(plain)
            if side is Side.CLIENT:
                self._request(reading, frame, plain, is_plain=plain is body)
            else:
                self._answer(reading, plain)
        except ProtocolError as error:
            reading.fault = fault_of(error, _LENGTH_BYTES)
        return reading

    def _request(self, reading: Reading, frame: bytes, plain: bytes, *, is_plain: bool) -> None:
        text, base = _text_of(plain)
        reading.name = "0xBA7C" if plain.startswith(MAGIC) else _name(text)
        connection = ServerConnection()
        connection.receive(frame if is_plain else len(plain).to_bytes(4, "big") + plain)
        event = connection.next_event()
        if isinstance(event, Refused):
            self._asked.append(BY_NAME.get(reading.name.encode()))
            # Any of its words may be the token.
            reading.is_secret = _MAY_BE_SECRET.search(text) is not None
            fault = Fault(str(event.error)) if reading.is_secret else fault_of(event.error, _LENGTH_BYTES + base)
            reading.fault = fault if is_plain else Fault(fault.message)
            return
        assert isinstance(event, Request)
        self._asked.append(event.operation)
        reading.name = event.operation.name
        reading.head["Spelling"] = event.spelling.value
        reading.message = event.message
        if event.credentials is not None:
            secrets: list[bytes] = []
            reading.head |= fields_of(event.credentials, SECRETS, secrets)
            reading.secrets = tuple(secrets)

    def _answer(self, reading: Reading, body: bytes) -> None:
        asked = self._asked[0] if self._asked else None
        if self._contents is not None:
            contents, self._contents = self._contents, None
            self._asked.popleft()
            self._seen(reading, replies.read_events(contents, body))
        elif is_failure(body):
            if self._asked:
                self._asked.popleft()
            failure = read_failure(body)
            reading.name, reading.fields = "ERROR", {"code": failure.code, **dict(failure.fields)}
        elif asked is None:
            self._unasked(reading, body)
        elif asked.request is ReadStream:
            self._envelope(reading, body)
        else:
            reading.head["Command"] = asked.name
            if asked.request is not Stream or not (body.startswith(MAGIC) or not body):
                self._asked.popleft()
            self._seen(reading, replies.read_answer(asked.answers, body))

    def _envelope(self, reading: Reading, body: bytes) -> None:
        contents = replies.read_envelope(body)
        if isinstance(contents, a.StreamContents):
            self._contents = contents
            self._seen(reading, contents)
            return
        self._asked.popleft()
        reading.name, reading.fields = "ERROR", {"code": contents.code, **dict(contents.fields)}

    def _unasked(self, reading: Reading, body: bytes) -> None:
        if self._asked:
            self._asked.popleft()
        if body.startswith(MAGIC):
            self._seen(reading, replies.read_answer((Batch,), body))
        else:
            reading.fields = {"text": body.decode("utf-8", "replace")}
        reading.fault = Fault("an answer without a captured request", 0)

    @staticmethod
    def _seen(reading: Reading, message: Any) -> None:  # noqa: ANN401 - any answer of the table
        reading.name = type(message).__name__
        reading.message = message


def _expanded(body: bytes) -> bytes:
    for compressor in COMPRESSORS.values():
        if body.startswith(compressor.magic):
            return expand(body, compressor, FRAME_BYTES_MAX, is_plain=lambda _: False)
    return body


def _text_of(body: bytes) -> tuple[bytes, int]:
    """Return the text of a command without its envelope, and its position."""
    if not body.startswith(b"\x00") or len(body) < 2:
        return body, 0
    start = 2 + int.from_bytes(body[:2], "big")
    return body[start:], start


def _name(text: bytes) -> str:
    name = command_name(text)
    return name.decode() if name in BY_NAME else "?"
