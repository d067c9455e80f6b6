"""The services that Mayfly's handlers call."""

from braidlog.adapters.services import CommonServices
from braidlog.broker.key_counts import KeyCounts
from braidlog.broker.keyvalue import KeyValue
from braidlog.broker.placement import Placement


class Services(CommonServices, frozen=True):
    placement: Placement
    keyvalue: KeyValue
    key_counts: KeyCounts
