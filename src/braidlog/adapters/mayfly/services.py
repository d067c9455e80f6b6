"""The services that Mayfly's handlers call."""

import msgspec

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.coordinators import Coordinators
from braidlog.broker.forwarding import Forwarding
from braidlog.broker.key_counts import KeyCounts
from braidlog.broker.keyvalue import KeyValue
from braidlog.broker.placement import Placement
from braidlog.broker.routing import Routing
from braidlog.model.world import World


class Services(msgspec.Struct, frozen=True):
    world: World
    placement: Placement
    routing: Routing
    coordinators: Coordinators
    forwarding: Forwarding
    authorize: Authorize
    keyvalue: KeyValue
    key_counts: KeyCounts
