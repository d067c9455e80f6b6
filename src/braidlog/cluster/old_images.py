"""Images of the metadata as they were once written, read as they are now.

Version 1 has no number. Its assignments name nodes as text, with the single node and its observers in one list.
"""

from typing import Any

import msgspec

from braidlog.cluster.events import CLUSTER_VERSION
from braidlog.cluster.image import Image
from braidlog.cluster.image_state import IMAGE_VERSION
from braidlog.cluster.topic import held_alone


class _Versioned(msgspec.Struct):
    version: int = 1


def decode_image(data: bytes) -> Image:
    """`msgspec.ValidationError` for one that this version does not know."""
    version = msgspec.json.decode(data, type=_Versioned).version
    if version == 1:
        return msgspec.convert(_from_first(msgspec.json.decode(data)), Image)
    if version != IMAGE_VERSION:
        raise msgspec.ValidationError(f"an image of version {version} was written by a later version of braidlog")
    image = msgspec.json.decode(data, type=Image)
    if image.cluster.version > CLUSTER_VERSION:
        raise msgspec.ValidationError(
            f"it is of cluster version {image.cluster.version}, and this braidlog knows {CLUSTER_VERSION}: upgrade this node"
        )
    return image


def _from_first(old: dict[str, Any]) -> dict[str, Any]:
    topics = {name: _topic_from_first(topic) for name, topic in old.get("topics", {}).items()}
    return {**old, "topics": topics, "cluster": {}, "version": IMAGE_VERSION}


def _topic_from_first(old: dict[str, Any]) -> dict[str, Any]:
    holder, *observers = old.pop("replicas")
    (first,) = held_alone(holder, 1, 1)
    held = {"replicas": first.replicas, "in_sync": first.in_sync}
    assignments = [
        {**each, **held, "leader": first.leader if each["leader"] == holder else None} for each in old["assignments"]
    ]
    return {**old, "holder": holder, "observers": observers, "assignments": assignments}
