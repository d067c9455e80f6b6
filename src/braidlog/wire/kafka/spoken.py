"""One API in one version, ready to be read and written: what is looked up once for every message.

Knows: which compiled code and which header belong to an API and version. Refuses to know: frames, and who may ask what.
"""

import struct
from typing import Any, Final, NamedTuple

from braidlog.wire.kafka.apis import Api
from braidlog.wire.kafka.compiler import Reader, Writer, past_tags, read_with, reader, write_with, writer
from braidlog.wire.kafka.rows import Message, fields_of

_PLAIN: Final = struct.Struct(">ii")
_TAGGED: Final = struct.Struct(">iix")


class Spoken(NamedTuple):
    """How a request and its response are spelled in one version."""

    api: Api
    version: int
    flexible: bool
    request_bytes_max: int
    request_parts_max: int
    read_request: Reader
    write_response: Writer
    response_header: struct.Struct
    """Size and correlation id; in flexible versions an empty tag section, except before ApiVersions' response."""

    @property
    def can_refuse(self) -> bool:
        """Whether the response has a place for an error of the whole request."""
        return any(each.name == "error_code" and self.version in each.versions for each in fields_of(self.api.response))

    def request_at(self, payload: bytes, at: int) -> tuple[Message, int]:
        """The request behind a header, and how many parts it has. What follows it is left unread, as some clients send more than
        they mean to."""
        if self.flexible:
            # Tags of a header: nobody sends any, and one zero says so.
            at = at + 1 if payload[at : at + 1] == b"\0" else past_tags(payload, at)
        read, request = self.read_request, self.api.request
        room = [self.request_parts_max, self.request_parts_max]
        message: Message = read_with(read, request, self.version, payload, at, room)[0]
        return message, room[1] - room[0]

    def response_pieces(self, answer: Message) -> list[Any]:
        """The pieces of a response, the first of them still empty: there goes the header."""
        pieces: list[Any] = [b""]
        write_with(self.write_response, answer, self.version, pieces.append)
        return pieces


_MADE: dict[tuple[type[Message], int], Spoken] = {}


def spoken(api: Api, version: int) -> Spoken:
    """Made at the first use of each."""
    found = _MADE.get((api.request, version))
    if found is None:
        flexible = api.is_flexible(version)
        found = _MADE[api.request, version] = Spoken(
            api,
            version,
            flexible,
            api.request_bytes_max,
            api.request_parts_max,
            reader(api.request, version, flexible=flexible),
            writer(api.response, version, flexible=flexible),
            _TAGGED if api.response_header_is_flexible(version) else _PLAIN,
        )
    return found
