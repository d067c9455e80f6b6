"""The services that Mayfly's handlers call."""

import msgspec

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.keyvalue import KeyValue
from braidlog.broker.placement import Placement


class Services(msgspec.Struct, frozen=True):
    placement: Placement
    authorize: Authorize
    keyvalue: KeyValue
