"""One API in one version, ready to be read and written: what is looked up once for every message.

Knows: which compiled code and which header belong to an API and version. Refuses to know: frames, and who may ask what.
"""

import struct
from typing import Any, Final, NamedTuple

from braidlog.codec.errors import ProtocolError
from braidlog.wire.kafka.apis import Api
from braidlog.wire.kafka.compiler import ITEMS_MAX, Reader, Writer, place_of_text, reader, skip_tags, writer
from braidlog.wire.kafka.rows import Message

_PLAIN: Final = struct.Struct(">ii")
_TAGGED: Final = struct.Struct(">iix")


class Spoken(NamedTuple):
    """How a request and its response are spelled in one version."""

    api: Api
    version: int
    flexible: bool
    request_bytes_max: int
    read_request: Reader
    write_response: Writer
    response_header: struct.Struct
    """Size and correlation id; in flexible versions an empty tag section, except before ApiVersions' response."""

    def request_at(self, payload: bytes, at: int) -> Message:
        """The request behind a header. What follows it is left unread, as some clients send more than they mean to."""
        try:
            if self.flexible:
                # Tags of a header: nobody sends any, and one zero says so.
                at = at + 1 if payload[at] == 0 else skip_tags(payload, at, len(payload))
            message: Message = self.read_request(payload, at, len(payload), [ITEMS_MAX])[0]
        except (struct.error, IndexError) as error:
            cut = ProtocolError(f"{self.api.name} {self.version} is cut off after {len(payload)} bytes")
            raise cut.at(len(payload)) from error
        except UnicodeDecodeError as error:
            wrong = ProtocolError(f"a string of {self.api.name} {self.version} is not UTF-8")
            raise wrong.at(place_of_text(payload, error)) from error
        return message

    def response_pieces(self, answer: Message) -> list[Any]:
        """The pieces of a response, the first of them still empty: there goes the header."""
        pieces: list[Any] = [b""]
        try:
            self.write_response(answer, pieces.append)
        except struct.error as error:
            raise ValueError(f"{type(answer).__name__} does not fit version {self.version}: {error}") from error
        return pieces


_MADE: dict[int, Spoken] = {}


def spoken(api: Api, version: int) -> Spoken:
    """Made at the first use of each."""
    number = api.key << 16 | version
    found = _MADE.get(number)
    if found is None:
        flexible = api.is_flexible(version)
        found = _MADE[number] = Spoken(
            api,
            version,
            flexible,
            api.request_bytes_max,
            reader(api.request, version, flexible=flexible),
            writer(api.response, version, flexible=flexible),
            _TAGGED if api.response_header_is_flexible(version) else _PLAIN,
        )
    return found
