"""Keys and values of the metadata log in etcd (docs/formats/metadata.md).

    <prefix>/head                      {"cluster":"…","seq":17,"digest":"…"}          the last entry
    <prefix>/events/00000000000000000017   {"seq":17,"by":"n1","nonce":"…","before":"…","events":[…],"time_ms":…}
    <prefix>/image/00000000000000000017/0000   one piece of an image; …/end  {"pieces":3,"digest":"…","entry":"…"}
    <prefix>/proposed/<node>           nonce of the node's last entry, written with the entry, kept after it is trimmed
    <prefix>/tick/<node>               a growing number; a node that sees it on its watch knows that the watch works
    <prefix>/alive/<node>              under a lease

`before` and `digest` chain the entries: a log restored from an older copy, or a different log, fails the check.
"""

import hashlib
from typing import Final

import msgspec

from braidlog.cluster.etcd.port import EtcdForeignError, Range
from braidlog.cluster.metadata.events import Envelope, Event, pack, unpack
from braidlog.cluster.metadata.metadata_store import Entry
from braidlog.model.errors import StorageFault

ENTRY_BYTES_MAX: Final = 1024 * 1024
"""etcd rejects requests above 1.5 MiB, and encoding makes values a third larger."""
PIECE_BYTES: Final = 512 * 1024


class Written(msgspec.Struct, frozen=True):
    """An entry as stored. Proposer and nonce let a node recognize its own proposal."""

    seq: int
    by: str
    nonce: str
    before: str
    events: list[Envelope]
    time_ms: int = 0
    """The proposer's clock, for display only; no decision uses it."""


class ImageEnd(msgspec.Struct, frozen=True):
    """Written after all pieces of an image; an image without it is incomplete and ignored."""

    pieces: int
    digest: str
    entry: str
    """Digest of the last entry that the image contains."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encode_entry(entry: Entry, by: str, nonce: str, before: str) -> bytes:
    return msgspec.json.encode(Written(entry.seq, by, nonce, before, pack(entry.events), entry.time_ms))


def decode_entry(value: bytes, seq: int, before: str) -> tuple[Written, list[Event]]:
    """Decode entry `seq` that follows the entry with digest `before`.

    Raises `EtcdForeignError` for a different entry, `StorageFault` if this version cannot apply its events.
    """
    try:
        written = msgspec.json.decode(value, type=Written)
    except msgspec.MsgspecError as error:
        raise EtcdForeignError(f"entry {seq} does not decode ({error}); restore it") from error
    if written.seq != seq or written.before != before:
        raise EtcdForeignError(f"entry {seq} does not follow the entry before it; restore it")
    try:
        return written, unpack(written.events)
    except msgspec.MsgspecError as error:
        raise StorageFault(f"entry {seq} of the metadata log does not decode: {error}") from error


class Keys:
    """Keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.strip("/")
        self.head = self._key("head")
        self.events = _below(self._key("events/"))
        self.images = _below(self._key("image/"))
        self.ticks = _below(self._key("tick/"))
        self.alive = _below(self._key("alive/"))

    def _key(self, rest: str) -> bytes:
        return f"/{self._prefix}/{rest}".encode()

    def event(self, seq: int) -> bytes:
        return self.events.first + b"%020d" % seq

    def events_after(self, seq: int) -> Range:
        return Range(self.event(seq + 1), self.events.end)

    def events_between(self, after: int, last: int) -> Range:
        return Range(self.event(after + 1), self.event(last + 1))

    def events_before(self, seq: int) -> Range:
        return Range(self.events.first, self.event(seq))

    def seq_of(self, key: bytes) -> int:
        return _number(key[len(self.events.first) :])

    def image(self, seq: int) -> Range:
        return _below(self.images.first + b"%020d/" % seq)

    def image_seq(self, key: bytes) -> int:
        return _number(key[len(self.images.first) :][:20])

    def images_before(self, seq: int) -> Range:
        return Range(self.images.first, self.image(seq).first)

    def piece(self, seq: int, number: int) -> bytes:
        return self.image(seq).first + b"%04d" % number

    def image_end(self, seq: int) -> bytes:
        return self.image(seq).first + b"end"

    def tick(self, node: str) -> bytes:
        return self.ticks.first + node.encode()

    def proposed(self, node: str) -> bytes:
        return self._key(f"proposed/{node}")

    def life(self, node: str) -> bytes:
        return self.alive.first + node.encode()


def _number(digits: bytes) -> int:
    """The number in a key; -1, below every entry, if the key has another format."""
    return int(digits) if len(digits) == 20 and digits.isdigit() else -1


def one(key: bytes) -> Range:
    return Range(key, key + b"\0")


def _below(prefix: bytes) -> Range:
    """All keys with a prefix. The prefix ends with a slash, so the next character ends the range."""
    return Range(prefix, prefix[:-1] + bytes([prefix[-1] + 1]))
