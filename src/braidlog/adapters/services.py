"""The services that the adapters of several dialects call; each dialect adds its own in its `services.py`."""

import msgspec

from braidlog.broker.coordination.coordinators import Coordinators
from braidlog.broker.forwarding import Forwarding
from braidlog.broker.routing import Routing
from braidlog.broker.topics import Topics
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.fetch.fetch import Fetch
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.partition.produce.append import Append
from braidlog.security.authorization import Authorize


class CommonServices(msgspec.Struct, frozen=True):
    """The services of every dialect: authorization, and routing to the node that serves a request."""

    runtime: Runtime
    authorize: Authorize
    routing: Routing
    coordinators: Coordinators
    forwarding: Forwarding


class LogServices(CommonServices, frozen=True):
    """The services of a dialect with topics."""

    hosting: PartitionRegistry
    topics: Topics
    append: Append
    fetch: Fetch
