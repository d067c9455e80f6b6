"""What any client is told in words."""

import errno

from braidlog.adapters.errors import FAULT, FULL, text_of
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.names import no_topic


def test_a_fault_names_no_files() -> None:
    assert text_of(StorageFault("it is broken", "/data/topics/t")) == FAULT
    full = StorageFault("no room", "/data/topics/t")
    full.__cause__ = OSError(errno.ENOSPC, "no space left")
    assert text_of(full) == FULL


def test_what_the_services_say_is_told() -> None:
    assert text_of(BrokerError(Reason.UNAVAILABLE, "not now")) == "not now"


def test_a_topic_that_is_not_there() -> None:
    assert str(no_topic("nope")) == "no topic 'nope'; create it with `braid topic create nope`"
    assert str(no_topic("no\nway")) == "no topic 'no\\nway'"
