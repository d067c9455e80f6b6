"""Moves a single node's metadata into etcd, and starts a cluster there with that node as its first member.

Every step can be repeated. Invariants: after the first step the folder starts neither alone nor with another cluster.
One write creates the complete cluster, and only if none existed. A folder follows the cluster once that is certain.

    cluster.a     moving to <id>                 with [cluster] etcd it starts only after the move
    folder.a      belongs to cluster <id>        it does not start without [cluster] etcd
    topics/       logs of keys                   rewritten by each attempt, from a store that no node writes
    etcd          the image, in pieces           invisible without a head
    etcd          entry 1 and the head           the cluster exists
    cluster.a     has followed entry 1           the move is done
    kv/           removed                        the keys are in the logs
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from braidlog.cluster.etcd import image_snapshots
from braidlog.cluster.etcd.entries import PIECE_BYTES, ImageEnd, Keys, digest, encode_entry
from braidlog.cluster.etcd.port import Etcd, EtcdAwayError, Holds, Put, Range
from braidlog.cluster.etcd.position import NO_ENTRY, Position, PositionFile
from braidlog.cluster.metadata.events import Event
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Entry
from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.folder.data_folder import DataFolder

MOVING: Final = "moving"
"""Placeholder for the digest of the last entry, before any exists."""
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
    """Move the metadata; returns the folder's position afterwards. May be repeated after a failure or crash at any
    point.

    `bring` durably adds further data to the folder, and returns the events that describe it. Each attempt calls it
    with the same result.
    """
    file = PositionFile(folder.disk, folder.path, node)
    known = file.load()
    if known is not None and not is_moving(known):
        raise BrokerError(
            Reason.VERSION_CONFLICT,
            f"{folder.path} already belongs to cluster {known.cluster}: start it with [cluster] etcd",
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
    await write_initial_log(etcd, keys, image, entry, moved, before=None)
    file.save(moved)
    return moved


async def _check_free(etcd: Etcd, keys: Keys, cluster: str) -> None:
    found = await image_snapshots.read_head(etcd, keys)
    if found is not None and found[0].cluster != cluster:
        raise BrokerError(
            Reason.VERSION_CONFLICT,
            f"etcd holds cluster {found[0].cluster} at {keys.head.decode()!r}; choose another prefix, or join "
            "the existing one with an empty folder",
        )


async def write_initial_log(
    etcd: Etcd, keys: Keys, image: Image, entry: bytes, head: Position, *, before: bytes | None
) -> None:
    """Write a log that starts with this image and an empty entry, and replaces the head `before`.

    Leftovers of an earlier attempt are deleted first. If another node replaces the head, nothing written here counts.
    """
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
    except EtcdAwayError:  # the write may have succeeded
        await etcd.write(begun, conditions=still)
    found = await image_snapshots.read_head(etcd, keys)
    if found is None or found[0].cluster != head.cluster:
        raise BrokerError(
            Reason.VERSION_CONFLICT, f"another cluster was created at {keys.head.decode()!r} during the move; try again"
        )
