"""The services that mlog's handlers call."""

import msgspec

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.coordinators import Coordinators
from braidlog.broker.forwarding import Forwarding
from braidlog.broker.placement import Placement
from braidlog.broker.routing import Routing
from braidlog.broker.topic_leaders import TopicLeaders
from braidlog.broker.topics import Topics
from braidlog.model.world import World
from braidlog.partition.append import Append
from braidlog.partition.fetch import Fetch
from braidlog.partition.hosting import Hosting


class Services(msgspec.Struct, frozen=True):
    world: World
    hosting: Hosting
    topics: Topics
    topic_leaders: TopicLeaders
    placement: Placement
    routing: Routing
    coordinators: Coordinators
    forwarding: Forwarding
    append: Append
    fetch: Fetch
    authorize: Authorize
