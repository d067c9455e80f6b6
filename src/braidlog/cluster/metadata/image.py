"""Current state of the metadata: topics, nodes, users, rules, quotas, ids.

`check` validates an event, `apply` changes the state.
Invariants: both are pure functions of image and event, so all nodes that apply the same log have the same image. An
event that passed `check` at one image is applied to exactly that image, which the store guarantees. A topic id is
never reused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from braidlog.cluster import membership
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata import image_changes as changes
from braidlog.cluster.metadata import image_checks as checks
from braidlog.cluster.metadata.events import CLUSTER_VERSION, Event
from braidlog.cluster.metadata.image_state import IMAGE_VERSION, ImageState

Handler = Callable[[ImageState, Any], None]
HANDLERS: Final[Mapping[type[Event], tuple[Handler, Handler]]] = {
    e.CreateTopic: (checks.check_create_topic, changes.apply_create_topic),
    e.DeleteTopic: (checks.check_topic, changes.apply_delete_topic),
    e.AlterTopic: (checks.check_topic, changes.apply_alter_topic),
    e.AddPartitions: (checks.check_add_partitions, changes.apply_add_partitions),
    e.PlaceTopic: (checks.check_place_topic, changes.apply_place_topic),
    e.ChangeLeader: (checks.check_change_leader, changes.apply_change_leader),
    e.AddNode: (checks.check_add_node, changes.apply_add_node),
    e.RemoveNode: (checks.check_remove_node, changes.apply_remove_node),
    e.FolderMade: (checks.check_topic, changes.apply_folder_made),
    e.IdBlock: (checks.check_id_block, changes.apply_id_block),
    e.SetUser: (checks.check_set_user, changes.apply_set_user),
    e.DropUser: (checks.check_drop_user, changes.apply_drop_user),
    e.AddRule: (checks.check_add_rule, changes.apply_add_rule),
    e.DropRule: (checks.check_drop_rule, changes.apply_drop_rule),
    e.RegisterNode: (checks.check_register_node, changes.apply_register_node),
    e.FenceNode: (checks.check_incarnation, changes.apply_fence_node),
    e.DrainNode: (checks.check_incarnation, changes.apply_drain_node),
    e.AssignPartition: (checks.check_assign_partition, changes.apply_assign_partition),
    e.ChangeSet: (checks.check_change_set, changes.apply_change_set),
    e.ResignReplica: (checks.check_resign_replica, changes.apply_resign_replica),
    e.SetQuota: (checks.check_set_quota, changes.apply_set_quota),
    e.SetGroup: (checks.check_set_group, changes.apply_set_group),
}
"""The check of each event, and its change."""


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
        HANDLERS[type(event)][0](self, event)

    def apply(self, event: Event) -> None:
        """Apply an event. Never fails for an event that passed `check`."""
        self.cluster.version = max(self.cluster.version, e.version_of(event))
        HANDLERS[type(event)][1](self, event)


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
