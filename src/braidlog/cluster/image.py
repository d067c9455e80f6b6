"""What the metadata log says now: topics, nodes, users, rules, quotas, ids.

Knows: which event makes sense (`check`) and what it changes (`apply`). Refuses to know: where events come from, time, disks.
Invariants: both are pure functions of image and event, so all who apply the same log have the same image; an event that passed
`check` at one image is applied to that image and no other (the store sees to it); a topic id is never used twice.
"""

from collections.abc import Sequence

import msgspec

from braidlog.cluster import events as e
from braidlog.cluster import membership
from braidlog.cluster.events import CLUSTER_VERSION, Event
from braidlog.cluster.image_changes import CHANGES
from braidlog.cluster.image_checks import CHECKS
from braidlog.cluster.image_state import IMAGE_VERSION, ImageState


class _Versioned(msgspec.Struct):
    version: int


class Image(ImageState):
    """The state that follows from the log. It changes by `apply` alone."""

    def copy(self) -> "Image":
        return Image(
            dict(self.topics),
            dict(self.deleted),
            dict(self.nodes),
            dict(self.users),
            list(self.rules),
            self.ids_taken,
            dict(self.made),
            self.cluster.copy(),
            dict(self.quotas),
            dict(self.entity_quotas),
            dict(self.group_settings),
        )

    def check_all(self, events: Sequence[Event]) -> None:
        """Refuse a list of which some event would not make sense after those before it, or is not known to all nodes."""
        membership.check_versions(self.cluster, events)
        trial = self.copy() if len(events) > 1 else self
        for event in events:
            trial.check(event)
            if trial is not self:
                trial.apply(event)

    def check(self, event: Event) -> None:
        """Raise `BrokerError` for an event that makes no sense now."""
        CHECKS[type(event)](self, event)

    def apply(self, event: Event) -> None:
        """Change what the event says. An event that passed `check` is never refused."""
        self.cluster.version = max(self.cluster.version, e.version_of(event))
        CHANGES[type(event)](self, event)


def decode_image(data: bytes) -> Image:
    """Return a written image; raise `msgspec.ValidationError` for one that this version does not know."""
    version = msgspec.json.decode(data, type=_Versioned).version
    if version != IMAGE_VERSION:
        raise msgspec.ValidationError(f"an image of version {version} was written by another version of braidlog")
    image = msgspec.json.decode(data, type=Image)
    if image.cluster.version > CLUSTER_VERSION:
        raise msgspec.ValidationError(
            f"it is of cluster version {image.cluster.version}, and this braidlog knows {CLUSTER_VERSION}: upgrade this node"
        )
    return image
