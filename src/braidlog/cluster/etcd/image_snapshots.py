"""Reads the whole metadata log, and reads and writes the images that replace its older entries.

Invariants: `load` returns the state at one etcd revision. An image counts only once its end is written, and is then
complete. Entries are deleted only below the older of two images, so a reader of an image finds all later entries.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import msgspec

from braidlog.cluster.etcd.entries import PIECE_BYTES, ImageEnd, Keys, decode_entry, digest, one
from braidlog.cluster.etcd.port import (
    Etcd,
    EtcdAwayError,
    EtcdCompactedError,
    EtcdForeignError,
    Holds,
    Item,
    Put,
    Range,
)
from braidlog.cluster.etcd.position import NO_ENTRY, Position
from braidlog.cluster.metadata.history import History
from braidlog.cluster.metadata.image import Image, decode_image
from braidlog.model.errors import StorageFault

IMAGES_KEPT: Final = 2
ITEMS_PER_READ: Final = 64
"""Items are up to 1 MiB each."""
LOADS_MAX: Final = 5


class Loaded(NamedTuple):
    """The state at one etcd revision."""

    head: Position
    image: Image
    events_since_image: int
    revision: int


async def read_head(etcd: Etcd, keys: Keys) -> tuple[Position, int] | None:
    """The head and the revision it was read at; None if no cluster exists."""
    reading = await etcd.read(one(keys.head))
    if not reading.items:
        return None
    try:
        return msgspec.json.decode(reading.items[0].value, type=Position), reading.revision
    except msgspec.MsgspecError as error:
        raise EtcdForeignError(f"the head does not decode ({error}); restore key {keys.head.decode()}") from error


async def load(etcd: Etcd, keys: Keys, history: History) -> Loaded | None:
    """Load the current state. Records the entries after the image in `history`."""
    for _ in range(LOADS_MAX):
        found = await read_head(etcd, keys)
        if found is None:
            return None
        head, revision = found
        try:
            image, seq, last = await _newest_image(etcd, keys, revision)
            events_count = 0
            async for item in read_all(etcd, keys.events_between(seq, head.seq), revision):
                seq += 1
                written, events = decode_entry(item.value, seq, last)
                for event in events:
                    history.apply(image, event, seq, written.time_ms)
                history.finish(seq)
                last = digest(item.value)
                events_count += len(events)
        except EtcdCompactedError:  # during the read another node wrote a snapshot and compacted the revision
            continue
        if (seq, last) != (head.seq, head.digest):
            raise EtcdForeignError(
                f"the log ends with entry {seq}, the head names entry {head.seq}; restore key {keys.head.decode()}"
            )
        return Loaded(head, image, events_count, revision)
    raise EtcdAwayError(f"etcd was compacted {LOADS_MAX} times while the metadata log was read")


async def read_all(etcd: Etcd, keys: Range, revision: int = 0) -> AsyncIterator[Item]:
    """Read a range in parts, all at one revision."""
    more = True
    while more:
        reading = await etcd.read(keys, limit=ITEMS_PER_READ, revision=revision)
        for item in reading.items:
            yield item
        more, revision = reading.more, revision or reading.revision
        if reading.items:
            keys = Range(reading.items[-1].key + b"\0", keys.end)


async def _ends(etcd: Etcd, keys: Keys, revision: int) -> list[int]:
    """Sequence numbers of the complete images, ascending."""
    reading = await etcd.read(keys.images, revision=revision, keys_only=True)
    return [keys.image_seq(item.key) for item in reading.items if item.key == keys.image_end(keys.image_seq(item.key))]


async def _newest_image(etcd: Etcd, keys: Keys, revision: int) -> tuple[Image, int, str]:
    ends = await _ends(etcd, keys, revision)
    if not ends:
        return Image(), 0, NO_ENTRY
    seq = ends[-1]
    pieces = [item async for item in read_all(etcd, keys.image(seq), revision)]
    value = pieces.pop().value  # sorts after the numbers of the pieces
    data = b"".join(piece.value for piece in pieces)
    foreign = f"the image of entry {seq} is damaged; restore keys {keys.image(seq).first.decode()}…"
    try:
        end = msgspec.json.decode(value, type=ImageEnd)
    except msgspec.MsgspecError as error:
        raise EtcdForeignError(foreign) from error
    if len(pieces) != end.pieces or digest(data) != end.digest:
        raise EtcdForeignError(foreign)
    try:
        return decode_image(data), seq, end.entry
    except msgspec.MsgspecError as error:
        raise StorageFault(f"the image of entry {seq} of the metadata log in etcd does not decode: {error}") from error


async def write_image(etcd: Etcd, keys: Keys, seq: int, entry: str, data: bytes) -> None:
    """Write all pieces, then the end. Two nodes that write the same image write the same bytes."""
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    for number, piece in enumerate(pieces):
        await etcd.write([Put(keys.piece(seq, number), piece)])
    end = msgspec.json.encode(ImageEnd(len(pieces), digest(data), entry))
    await etcd.write([Put(keys.image_end(seq), end)], conditions=[Holds(keys.image_end(seq), None)])


async def trim(etcd: Etcd, keys: Keys) -> None:
    """Delete all but two images and the entries after the older one. Followers that missed deleted entries load an
    image.
    """
    ends = await _ends(etcd, keys, 0)
    if len(ends) < IMAGES_KEPT:
        return
    oldest = ends[-IMAGES_KEPT]
    outcome = await etcd.write([], deletes=[keys.images_before(oldest), keys.events_before(oldest + 1)])
    await etcd.compact(outcome.revision)
