"""Topics of a cluster, as events."""

from typing import Any

from braidlog.cluster.metadata.events import CreateTopic
from braidlog.model.settings import TopicSettings


def placed(*placement: tuple[int, ...], topic: str = "t", topic_id: str = "01", **more: Any) -> CreateTopic:
    """A topic with a partition for each placement: the first of its nodes is the preferred leader."""
    fields = {"settings": TopicSettings(), "replicas": ("1",), "min_in_sync": 2, **more}
    return CreateTopic(
        topic=topic, topic_id=topic_id, partitions=len(placement), created_ms=1, placement=placement, **fields
    )
