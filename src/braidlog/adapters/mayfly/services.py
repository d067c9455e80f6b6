"""The services that Mayfly's handlers call."""

from braidlog.adapters.services import CommonServices
from braidlog.broker.keys.key_counts import KeyCounts
from braidlog.broker.keys.key_service import KeyValue
from braidlog.broker.topic_placement import Placement


class Services(CommonServices, frozen=True):
    placement: Placement
    keyvalue: KeyValue
    key_counts: KeyCounts
