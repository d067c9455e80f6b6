"""The services that mlog's handlers call."""

from braidlog.adapters.services import LogServices
from braidlog.broker.placement import Placement
from braidlog.broker.topic_leaders import TopicLeaders


class Services(LogServices, frozen=True):
    topic_leaders: TopicLeaders
    placement: Placement
