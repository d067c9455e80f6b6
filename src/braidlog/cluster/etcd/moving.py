"""A single node's metadata moves into etcd, and begins a cluster there with that node in it.

Knows: the order of the steps, each of which can be repeated. Refuses to know: what the metadata says.
Invariants: from the first step on the folder starts neither alone nor with another cluster; the cluster is there for others, with
everything in it, by one write, and only if there was none; a folder follows it once that is certain.

    cluster.a     moving to <id>                 it starts with [cluster] etcd only when the move is done
    folder.a      belongs to cluster <id>        it does not start without
    topics/       logs of keys                   written again by each try, from a store that no node writes
    etcd          the image, in pieces           nobody sees it without a head
    etcd          entry 1 and the head           the cluster is there
    cluster.a     has followed entry 1           the move is done
    kv/           removed                        the keys are in the logs
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from braidlog.cluster.etcd import images
from braidlog.cluster.etcd.entries import PIECE_BYTES, ImageEnd, Keys, digest, encode_entry
from braidlog.cluster.etcd.port import Etcd, EtcdAwayError, Holds, Put, Range
from braidlog.cluster.etcd.position import NO_ENTRY, Position, PositionFile
from braidlog.cluster.events import Event
from braidlog.cluster.image import Image
from braidlog.cluster.store import Entry
from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.folder import DataFolder

MOVING: Final = "moving"
"""In place of the digest of the last entry: there is none yet."""
FIRST: Final = 1


def is_moving(position: Position | None) -> bool:
    return position is not None and position.digest == MOVING


async def move_into_etcd(
    etcd: Etcd,
    keys: Keys,
    folder: DataFolder,
    image: Image,
    *,
    node: str,
    new_cluster: str,
    bring: Callable[[], Sequence[Event]] = lambda: (),
) -> Position:
    """Returns where the folder is then. May be called again after it failed, or died, at any point. `bring`: puts what else comes
    along into the folder, durably, and says what the metadata is to say of it; done by each try, and always the same."""
    file = PositionFile(folder.disk, folder.path, node)
    known = file.load()
    if known is not None and not is_moving(known):
        raise BrokerError(
            Reason.VERSION_CONFLICT,
            f"{folder.path} is part of cluster {known.cluster} already: start it with [cluster] etcd",
        )
    cluster = new_cluster if known is None else known.cluster
    await _check_free(etcd, keys, cluster)
    if known is None:
        file.save(Position(cluster, 0, MOVING))
    if folder.identity.cluster != cluster:
        folder.join_cluster(cluster)
    image = image.copy()
    for event in bring():
        image.apply(event)
    entry = encode_entry(Entry(FIRST, []), node, cluster, NO_ENTRY)
    moved = Position(cluster, FIRST, digest(entry))
    await write_beginning(etcd, keys, image, entry, moved, before=None)
    file.save(moved)
    return moved


async def _check_free(etcd: Etcd, keys: Keys, cluster: str) -> None:
    found = await images.read_head(etcd, keys)
    if found is not None and found[0].cluster != cluster:
        raise BrokerError(
            Reason.VERSION_CONFLICT,
            f"etcd holds cluster {found[0].cluster} at {keys.head.decode()!r}; choose another prefix for this one, or let an "
            "empty folder join that one",
        )


async def write_beginning(
    etcd: Etcd, keys: Keys, image: Image, entry: bytes, head: Position, *, before: bytes | None
) -> None:
    """A log that begins with this image, at an entry without events, in place of the head `before`. What an earlier try left goes
    first; all of it is void once there is another head."""
    seq, still = head.seq, [Holds(keys.head, before)]
    data = msgspec.json.encode(image, order="sorted")
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    end = ImageEnd(len(pieces), digest(data), head.digest)
    left = [Range(keys.image(seq).first, keys.images.end), keys.events_after(seq - 1)]
    await etcd.write([], deletes=left, conditions=still)
    for number, piece in enumerate(pieces):
        await etcd.write([Put(keys.piece(seq, number), piece)], conditions=still)
    await etcd.write([Put(keys.image_end(seq), msgspec.json.encode(end))], conditions=still)
    begun = [Put(keys.event(seq), entry), Put(keys.head, msgspec.json.encode(head))]
    try:
        await etcd.write(begun, conditions=still)
    except EtcdAwayError:  # perhaps it was done
        await etcd.write(begun, conditions=still)
    found = await images.read_head(etcd, keys)
    if found is None or found[0].cluster != head.cluster:
        raise BrokerError(
            Reason.VERSION_CONFLICT, f"another cluster was begun at {keys.head.decode()!r} meanwhile; try again"
        )
