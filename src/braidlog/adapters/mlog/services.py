"""The services that mlog's handlers call."""

from braidlog.adapters.services import LogServices
from braidlog.broker.topic_leaders import TopicLeaders
from braidlog.broker.topic_placement import Placement


class Services(LogServices, frozen=True):
    topic_leaders: TopicLeaders
    placement: Placement
