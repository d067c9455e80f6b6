"""Current state of the metadata: topics, nodes, users, rules, quotas, ids.

`check` validates an event, `apply` changes the state.
Invariants: both are pure functions of image and event, so all nodes that apply the same log have the same image. An
event that passed `check` at one image is applied to exactly that image, which the store guarantees. A topic id is
never reused.
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
    """The state derived from the log. Only `apply` changes it."""

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
        """Raise `BrokerError` if an event is invalid after those before it, or if a node does not know it."""
        membership.check_versions(self.cluster, events)
        trial = self.copy() if len(events) > 1 else self
        for event in events:
            trial.check(event)
            if trial is not self:
                trial.apply(event)

    def check(self, event: Event) -> None:
        """Raise `BrokerError` for an event that is invalid now."""
        CHECKS[type(event)](self, event)

    def apply(self, event: Event) -> None:
        """Apply an event. Never fails for an event that passed `check`."""
        self.cluster.version = max(self.cluster.version, e.version_of(event))
        CHANGES[type(event)](self, event)


def decode_image(data: bytes) -> Image:
    """Decode an image. Raises `msgspec.ValidationError` for a version that this program does not know."""
    version = msgspec.json.decode(data, type=_Versioned).version
    if version != IMAGE_VERSION:
        raise msgspec.ValidationError(f"an image of version {version} was written by another version of braidlog")
    image = msgspec.json.decode(data, type=Image)
    if image.cluster.version > CLUSTER_VERSION:
        raise msgspec.ValidationError(
            f"cluster version {image.cluster.version} is newer than {CLUSTER_VERSION}: upgrade this node"
        )
    return image
