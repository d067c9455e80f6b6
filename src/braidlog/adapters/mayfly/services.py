"""The services that Mayfly's handlers call."""

import msgspec

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.keyvalue import KeyValue
from braidlog.broker.topics import Topics


class Services(msgspec.Struct, frozen=True):
    topics: Topics
    authorize: Authorize
    keyvalue: KeyValue
